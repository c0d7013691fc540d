//! What a point must be to go on, and what it becomes.

use std::borrow::Cow;

use telemetry_proto::RunnerId;
use telemetry_proto::exposition::{LineFault, Point, is_control_line, parse_line};

use super::{DropReason, PointLimits};
use crate::forward::RUNNER_LABEL;

/// The label that names the cluster, which is not for runners to say.
pub(super) const CLUSTER_LABEL: &str = "miren_cluster";

/// The rules, for the lines of one batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) limits: PointLimits,
    /// The verified runner.
    pub(super) runner: &'a RunnerId,
    /// Whether the token names it too.
    pub(super) named_by_token: bool,
    /// Whether the marker's bytes occur in the body.
    pub(super) has_marker: bool,
    /// When the batch came, in milliseconds since 1970.
    pub(super) now_ms: i64,
}

impl Rules<'_> {
    /// The point of a line as it goes on; `None` for a line that holds none.
    pub(super) fn read(&self, line: &[u8]) -> Result<Option<Point<'static>>, DropReason> {
        if self.has_marker && is_control_line(line) {
            return Err(DropReason::ControlEntity);
        }
        let point = parse_line(line).map_err(|fault| match fault {
            LineFault::NotUtf8 => DropReason::NotUtf8,
            _ => DropReason::Unparseable,
        })?;
        let Some(mut point) = point else { return Ok(None) };
        point.labels.retain(|(name, _)| name != CLUSTER_LABEL);
        self.name_runner(&mut point)?;
        self.check(&point)?;
        // It may wait for a slow sink: the moment of its arrival at a store would be another.
        point.timestamp_ms.get_or_insert(self.now_ms);
        Ok(Some(point.into_owned()))
    }

    /// Files the point under the verified runner. Where the operator takes tokens that name none, their points keep the
    /// runner that they name; one that is no runner's ID names none.
    fn name_runner(&self, point: &mut Point<'_>) -> Result<(), DropReason> {
        let place = point.labels.binary_search_by(|(name, _)| name.as_ref().cmp(RUNNER_LABEL));
        if !self.named_by_token {
            let named = place.is_ok_and(|at| RunnerId::new(&point.labels[at].1).is_ok());
            return if named { Ok(()) } else { Err(DropReason::NoRunner) };
        }
        let runner = Cow::Owned(self.runner.as_str().to_owned());
        match place {
            Ok(at) => point.labels[at].1 = runner,
            Err(at) => point.labels.insert(at, (Cow::Borrowed(RUNNER_LABEL), runner)),
        }
        Ok(())
    }

    fn check(&self, point: &Point<'_>) -> Result<(), DropReason> {
        let limits = &self.limits;
        let latest_ms = self.now_ms.saturating_add(i64::try_from(limits.max_future.as_millis()).unwrap_or(i64::MAX));
        let mut names = point.labels.iter().map(|(name, _)| name.len()).chain([point.name.len()]);
        let faults = [
            (point.labels.len() > limits.max_labels, DropReason::TooManyLabels),
            (names.any(|len| len > limits.max_name_bytes), DropReason::NameTooLong),
            (point.labels.iter().any(|(_, v)| v.len() > limits.max_value_bytes), DropReason::ValueTooLong),
            (point.timestamp_ms.is_some_and(|at| at > latest_ms), DropReason::InFuture),
            (point.value.is_nan() && !limits.allow_nan, DropReason::Nan),
        ];
        match faults.into_iter().find(|(holds, _)| *holds) {
            Some((_, reason)) => Err(reason),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use telemetry_proto::exposition::{CONTROL_ENTITY, write_point};

    use super::*;

    const NOW_MS: i64 = 1_790_000_000_000;
    const DAY_MS: i64 = 24 * 60 * 60 * 1_000;

    struct Case {
        limits: PointLimits,
        named_by_token: bool,
    }

    impl Default for Case {
        fn default() -> Self {
            Self { limits: PointLimits::default(), named_by_token: true }
        }
    }

    impl Case {
        fn limits(limits: PointLimits) -> Self {
            Self { limits, ..Self::default() }
        }

        /// The line as it goes on, or why it does not.
        fn read(&self, line: &str) -> Result<String, DropReason> {
            let runner = RunnerId::new("r7").unwrap();
            let Self { limits, named_by_token } = *self;
            let rules = Rules { limits, runner: &runner, named_by_token, has_marker: true, now_ms: NOW_MS };
            let point = rules.read(line.as_bytes())?.expect("a point");
            let mut text = Vec::new();
            write_point(&mut text, &point);
            Ok(String::from_utf8(text).unwrap().trim_end().to_owned())
        }
    }

    #[test]
    fn the_runner_is_the_verified_one_whatever_the_point_says() {
        for line in [
            "up 1 5",
            "up{miren_runner=\"r8\"} 1 5",
            "up{miren_runner=\"\"} 1 5",
            "up{miren_runner=\"r8\",miren_runner=\"r9\"} 1 5",
        ] {
            assert_eq!(Case::default().read(line).unwrap(), "up{miren_runner=\"r7\"} 1 5", "{line}");
        }
        let sorted = "up{a=\"1\",miren_runner=\"r7\",z=\"2\"} 1 5";
        assert_eq!(Case::default().read("up{z=\"2\",a=\"1\"} 1 5").unwrap(), sorted);
    }

    #[test]
    fn the_cluster_is_not_for_runners_to_say() {
        let line = "up{miren_cluster=\"other\",miren_cluster=\"x\",a=\"b\"} 1 5";
        assert_eq!(Case::default().read(line).unwrap(), "up{a=\"b\",miren_runner=\"r7\"} 1 5");
    }

    #[test]
    fn a_runner_never_speaks_as_the_coordinator() {
        for line in [
            "up{entity=\"miren/control\"} 1",
            "up{entity=\"miren/control\",entity=\"e\"} 1",
            "up{entity=\"e\",entity=\"miren/control\"} 1",
        ] {
            assert_eq!(Case::default().read(line), Err(DropReason::ControlEntity), "{line}");
        }
        assert!(Case::default().read("up{x=\"miren/control\",entity=\"e\"} 1").is_ok());
    }

    #[test]
    fn where_the_token_names_no_runner_a_point_without_one_is_dropped_and_others_keep_theirs() {
        let case = Case { named_by_token: false, ..Case::default() };
        for line in ["up 1", "up{miren_runner=\"\"} 1", "up{miren_runner=\"no id\"} 1", "up{runner=\"r8\"} 1"] {
            assert_eq!(case.read(line), Err(DropReason::NoRunner), "{line}");
        }
        assert_eq!(case.read("up{miren_runner=\"r8\"} 1 5").unwrap(), "up{miren_runner=\"r8\"} 1 5");
        assert_eq!(
            case.read("up{miren_cluster=\"c\",miren_runner=\"r8\"} 1 5").unwrap(),
            "up{miren_runner=\"r8\"} 1 5"
        );
    }

    #[test]
    fn what_cant_be_read_is_dropped_and_what_holds_nothing_is_nothing() {
        for line in ["up", "miren.up 1", "up{a=b} 1", "up 1e999", "up 1 2 3"] {
            assert_eq!(Case::default().read(line), Err(DropReason::Unparseable), "{line}");
        }
        let runner = RunnerId::new("r7").unwrap();
        let limits = PointLimits::default();
        let rules = Rules { limits, runner: &runner, named_by_token: true, has_marker: false, now_ms: NOW_MS };
        assert_eq!(rules.read(b"up{a=\"\xff\"} 1"), Err(DropReason::NotUtf8));
        for line in ["", " \t", "# HELP up", "\r"] {
            assert_eq!(rules.read(line.as_bytes()), Ok(None), "{line:?}");
        }
    }

    #[test]
    fn labels_are_counted_as_they_go_on() {
        let case = Case::limits(PointLimits { max_labels: 3, ..PointLimits::default() });
        for line in [
            "up{a=\"1\",b=\"2\"} 1",
            "up{a=\"1\",b=\"2\",miren_runner=\"x\"} 1",
            "up{a=\"1\",b=\"2\",miren_cluster=\"x\"} 1",
            "up{a=\"1\",b=\"2\",b=\"3\"} 1",
        ] {
            assert!(case.read(line).is_ok(), "{line}");
        }
        assert_eq!(case.read("up{a=\"1\",b=\"2\",c=\"3\"} 1"), Err(DropReason::TooManyLabels));
    }

    #[test]
    fn names_and_values_have_a_longest_length() {
        let case = Case::limits(PointLimits { max_name_bytes: 12, max_value_bytes: 3, ..PointLimits::default() });
        let longest = "n".repeat(12);
        assert!(case.read(&format!("{longest}{{{longest}=\"vvv\"}} 1")).is_ok());
        for line in [format!("{longest}n 1"), format!("up{{{longest}n=\"v\"}} 1")] {
            assert_eq!(case.read(&line), Err(DropReason::NameTooLong), "{line}");
        }
        assert_eq!(case.read("up{a=\"vvvv\"} 1"), Err(DropReason::ValueTooLong));
        // Bytes as they are, not as they are written.
        assert!(case.read(r#"up{a="\"\"\""} 1"#).is_ok());
        assert_eq!(case.read("up{a=\"ää\"} 1"), Err(DropReason::ValueTooLong));
    }

    #[test]
    fn timestamps_are_kept_up_to_two_days_ahead_and_set_where_there_is_none() {
        let case = Case::default();
        let latest = NOW_MS + 2 * DAY_MS;
        for at in [latest, NOW_MS, 0, -1, i64::MIN] {
            assert!(case.read(&format!("up 1 {at}")).unwrap().ends_with(&format!(" {at}")));
        }
        for at in [latest + 1, i64::MAX] {
            assert_eq!(case.read(&format!("up 1 {at}")), Err(DropReason::InFuture));
        }
        assert!(case.read("up 1").unwrap().ends_with(&format!(" {NOW_MS}")));
        let any = Case::limits(PointLimits { max_future: Duration::MAX, ..PointLimits::default() });
        assert!(any.read(&format!("up 1 {}", i64::MAX)).is_ok());
    }

    #[test]
    fn nan_is_a_setting_and_infinity_is_a_value() {
        assert_eq!(Case::default().read("up NaN"), Err(DropReason::Nan));
        let case = Case::limits(PointLimits { allow_nan: true, ..PointLimits::default() });
        assert!(case.read("up NaN").is_ok());
        assert!(Case::default().read("up +Inf").is_ok());
    }

    #[test]
    fn what_is_within_every_default_is_what_the_store_takes() {
        let labels: Vec<_> = (0..36).map(|i| format!("l{i}=\"{}\"", "v".repeat(4_096))).collect();
        let line = format!("{}{{{}}} 1", "n".repeat(256), labels.join(","));
        assert!(Case::default().read(&line).is_ok());
        assert_eq!(Case::default().read(&line.replace("l0=", "x=\"\",l0=")), Err(DropReason::TooManyLabels));
    }

    fn any_line() -> impl Strategy<Value = String> {
        let label = ("entity|miren_runner|miren_cluster|a|zz|[a-z9.]{1,2}", "r8|miren/control|[a-z]{0,6}|\\\\n");
        let labels = proptest::collection::vec(label, 0..6);
        (labels, "1|-2.5e3|NaN|x", "|1789999999999|[0-9]{13}|9{18}").prop_map(|(labels, value, at)| {
            let labels: Vec<_> = labels.into_iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
            format!("up{{{}}} {value} {at}", labels.join(","))
        })
    }

    proptest! {
        #[test]
        fn whatever_goes_on_is_within_every_rule(line in any_line()) {
            let runner = RunnerId::new("r7").unwrap();
            let limits = PointLimits { max_labels: 4, max_value_bytes: 13, ..PointLimits::default() };
            let rules = Rules { limits, runner: &runner, named_by_token: true, has_marker: true, now_ms: NOW_MS };
            if let Ok(Some(point)) = rules.read(line.as_bytes()) {
                prop_assert_eq!(point.get(RUNNER_LABEL), Some("r7"));
                prop_assert_eq!(point.get(CLUSTER_LABEL), None);
                prop_assert_ne!(point.get("entity"), Some(CONTROL_ENTITY));
                prop_assert!(!line.contains("entity=\"miren/control\""));
                prop_assert!(point.labels.is_sorted_by(|(a, _), (b, _)| a < b));
                prop_assert!(point.labels.len() <= 4 && point.labels.iter().all(|(_, value)| value.len() <= 13));
                prop_assert!(point.timestamp_ms.unwrap() <= NOW_MS + 2 * DAY_MS && !point.value.is_nan());
                let mut text = Vec::new();
                write_point(&mut text, &point);
                let text = text.strip_suffix(b"\n").unwrap();
                prop_assert_eq!(rules.read(text), Ok(Some(point)), "what went on goes on as it is");
            }
        }
    }
}
