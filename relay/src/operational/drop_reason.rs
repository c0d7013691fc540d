//! Why a point is dropped.

/// Why a point of an operational batch did not go on. The codes are stable: they are values of a metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// `not-utf8`: the line is no text.
    NotUtf8,
    /// `unparseable`: the line is outside the grammar of exposition text.
    Unparseable,
    /// `line-too-long`: the line is longer than 256 KiB.
    LineTooLong,
    /// `control-entity`: the sender speaks as the coordinator.
    ControlEntity,
    /// `no-runner`: the token names no runner, and the point does not either.
    NoRunner,
    /// `too-many-labels`: see [`PointLimits::max_labels`](super::PointLimits::max_labels).
    TooManyLabels,
    /// `name-too-long`: see [`PointLimits::max_name_bytes`](super::PointLimits::max_name_bytes).
    NameTooLong,
    /// `value-too-long`: see [`PointLimits::max_value_bytes`](super::PointLimits::max_value_bytes).
    ValueTooLong,
    /// `in-future`: see [`PointLimits::max_future`](super::PointLimits::max_future).
    InFuture,
    /// `nan`: see [`PointLimits::allow_nan`](super::PointLimits::allow_nan).
    Nan,
    /// `over-batch-limit`: the batch had its [`PointLimits::max_points`](super::PointLimits::max_points) already. Lines that
    /// come then are counted without being parsed.
    OverBatchLimit,
}

impl DropReason {
    /// Every reason, in their order.
    pub const ALL: [Self; 11] = [
        Self::NotUtf8,
        Self::Unparseable,
        Self::LineTooLong,
        Self::ControlEntity,
        Self::NoRunner,
        Self::TooManyLabels,
        Self::NameTooLong,
        Self::ValueTooLong,
        Self::InFuture,
        Self::Nan,
        Self::OverBatchLimit,
    ];

    /// The stable code.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotUtf8 => "not-utf8",
            Self::Unparseable => "unparseable",
            Self::LineTooLong => "line-too-long",
            Self::ControlEntity => "control-entity",
            Self::NoRunner => "no-runner",
            Self::TooManyLabels => "too-many-labels",
            Self::NameTooLong => "name-too-long",
            Self::ValueTooLong => "value-too-long",
            Self::InFuture => "in-future",
            Self::Nan => "nan",
            Self::OverBatchLimit => "over-batch-limit",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_listed_at_its_place() {
        for (place, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place, "{reason:?}");
        }
    }
}
