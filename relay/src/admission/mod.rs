//! Who may go on, and when: memory for bodies, and a tenant's permits for the stores.

mod budget;
mod tenant;
mod waiting_room;

pub use budget::{BodyBudget, BodyReservation, BudgetLimits};
pub use tenant::{Permit, Tenant, TenantLimits};
