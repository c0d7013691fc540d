//! Prometheus exposition text: the lines of a metrics batch.
//!
//! The formatter and the parser live together and round-trip. The parser is strict, and what it accepts both
//! VictoriaMetrics and Prometheus read in the same way (text format 0.0.4):
//!
//! ```text
//! NAME [ "{" [ LABEL "=" QUOTED { "," LABEL "=" QUOTED } [ "," ] ] "}" ] VALUE [ MILLISECONDS ]
//! ```
//!
//! - `NAME` is `[A-Za-z_:][A-Za-z0-9_:]*`, `LABEL` is the same without `:`. Dotted names are refused: they would be
//!   sanitised into names that are reserved.
//! - `QUOTED` knows the escapes `\\`, `\"` and `\n`. Of two equal labels the last wins.
//! - `VALUE` is a float, `NaN` or an infinity; `MILLISECONDS` is an integer, since 1970.
//! - Tokens are separated by blanks and tabs; blank lines and those that begin with `#` are skipped; a line may end
//!   with CR LF.

mod control;
mod format;
mod name;
mod parse;
mod point;

pub use control::{CONTROL_ENTITY, ControlFilter, ControlScan, is_control_line};
pub use format::{write_escaped, write_point, write_value};
pub use name::{sanitize_label_name, sanitize_metric_name};
pub use parse::{BadLine, LineFault, Lines, parse, parse_line};
pub use point::{Label, Point};
