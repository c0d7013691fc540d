//! What a program that runs for long wants of the machine that runs it: a service manager that knows how it is, a watchdog
//! that ends it when it hangs, a log that people and programs can read, and figures about the process.

mod log;
mod manager;
mod process;
mod watchdog;

pub use log::start_log;
pub use manager::ServiceManager;
pub use process::ProcessCollector;
pub use watchdog::Watchdog;
