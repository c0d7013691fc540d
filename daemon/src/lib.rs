//! What a program that runs for long wants of the machine that runs it: a service manager that knows how it is, a watchdog
//! that ends it when it hangs, and a log that people and programs can read.

mod log;
mod manager;
mod watchdog;

pub use log::start_log;
pub use manager::ServiceManager;
pub use watchdog::Watchdog;
