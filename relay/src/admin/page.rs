//! The page for people: one file, embedded, without anything from elsewhere.

/// The page. It asks `/status` every second and draws what it gets.
pub(super) const PAGE: &str = include_str!("page.html");
