//! The way to a store: where it is, what is asked of it, and what its answer means.

mod account;
mod address;
mod answer;
mod body;
mod client;
mod connector;
mod pin;
mod target;

pub use account::{Account, AccountError};
pub use address::{AddressError, StoreAddress};
pub use answer::Answer;
pub(crate) use client::Outgoing;
pub use client::{Backend, BackendSettings};
pub use pin::TenantPin;
pub use target::{Attribution, LogStreamFields, StreamFieldsError, Target};
pub(crate) use target::{RUNNER_LABEL, needs_account};
