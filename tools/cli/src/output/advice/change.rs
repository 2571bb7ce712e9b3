//! A change in percent.

/// Smaller changes are ignored.
pub(super) const NO_CHANGE: f64 = 0.005;

/// A change in percent, with its sign; nothing where there is none.
pub(super) fn percent(change: f64) -> String {
    if change.abs() < NO_CHANGE { String::new() } else { format!(" {:+.0} %", change * 100.0) }
}
