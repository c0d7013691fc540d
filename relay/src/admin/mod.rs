//! What an operator sees: metrics, health, status, and a page for people. Read-only, on loopback.
//!
//! | path | what |
//! | --- | --- |
//! | `/metrics` | Prometheus exposition text |
//! | `/healthz` | 200 as long as the process serves |
//! | `/readyz` | 200 if runners' writes can succeed; 503 with what is in the way |
//! | `/status` | [`Status`] as JSON |
//! | `/` | a page that shows `/status` and updates itself |

mod expiry;
mod history;
mod levels;
mod observer;
mod page;
mod per_runner;
mod ready;
mod server;
mod status;
mod stores;

pub use expiry::ENDS_SOON;
pub use history::{HISTORY_SPAN, Moment, SAMPLE_EVERY};
pub use observer::Observer;
pub use per_runner::DEFAULT_RUNNER_SERIES;
pub use server::{AdminConfig, AdminError, AdminHandle, AdminServer};
pub use status::{
    CertificateStatus, ConfigStatus, ListenerStatus, RefusalStatus, RunnerStatus, Status, StoreStatus, TenantStatus,
};
