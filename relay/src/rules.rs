//! The rules for a write that do not depend on who sends it.

use crate::intake::BodyLimits;
use crate::traces::TracesSettings;

/// What holds for every write, whoever sends it. Each request takes the rules that are in force when it comes, and keeps
/// them to its end.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WriteRules {
    /// Bounds of one body.
    pub body: BodyLimits,
    /// Whether writes may come without `Content-Length`. Such a body reserves memory for the largest.
    pub allow_unknown_length: bool,
    /// What of a runner's spans is kept, and how many spans a runner should make.
    pub traces: TracesSettings,
}
