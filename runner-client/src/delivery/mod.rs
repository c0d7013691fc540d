//! From written lines to settled batches.

mod accounting;
mod batch;
mod dead_letter;
mod dead_letter_folder;
mod engine;
mod keeper;
mod notice;
mod outbox;
mod pipeline;
mod queue;
mod verdict;

pub use accounting::{DropReason, Tally};
pub use batch::BatchLimits;
pub use dead_letter::{DeadLetters, RecentRejections, Rejected};
pub use dead_letter_folder::{DeadLetterConfig, DeadLetterError, DeadLetterFolder, DeadLetterStats};
pub use engine::RetrySettings;
pub use outbox::{Keeping, NotTaken, SignalSettings, Taken};
pub use pipeline::{CloseReport, FlushReport};

pub(crate) use batch::{Frame, Stream};
pub(crate) use engine::Way;
pub(crate) use keeper::KeeperHandle;
pub(crate) use outbox::Outbox;
pub(crate) use pipeline::{Pipelines, Plan};
