//! Who may go on, and when: rates, memory for bodies, and permits for the stores; per tenant and per runner.
//!
//! - [`Allowance`]: what a tenant may use, and what it has used;
//! - [`Sender`]: a request of one of its runners, which asks for its share;
//! - [`BodyBudget`]: the memory that all of them divide.

mod allowance;
mod booking;
mod budget;
mod caller;
mod limits;
mod line;
#[cfg(test)]
mod line_model;
mod pace;
mod queue;
mod rate;
mod runners;
mod sender;
#[cfg(test)]
mod simulation;
mod tickets;

pub use allowance::Allowance;
pub use budget::{BodyBudget, BodyReservation, BudgetLimits};
pub use caller::Caller;
pub use limits::{RunnerLimits, TenantLimits};
pub use rate::{Rate, Rates};
pub use sender::{Permit, Sender};
