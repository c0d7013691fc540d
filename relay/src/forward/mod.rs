//! The way to a store: where it is, what is asked of it, and what its answer means.

mod address;
mod answer;
mod body;
mod client;
mod connector;
mod target;

pub use address::{AddressError, StoreAddress};
pub use answer::Answer;
pub(crate) use client::Outgoing;
pub use client::{Backend, BackendSettings};
pub use target::{Attribution, LogStreamFields, StreamFieldsError, Target};
