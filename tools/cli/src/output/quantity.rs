//! Quantities with units, in three digits.

/// Bytes with a unit, three digits.
pub(super) fn size(bytes: f64) -> String {
    let (value, unit) = match bytes {
        bytes if bytes >= 1e9 => (bytes / f64::from(1 << 30), "GiB"),
        bytes if bytes >= 1e6 => (bytes / f64::from(1 << 20), "MiB"),
        bytes => (bytes / f64::from(1 << 10), "KiB"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// A count with a unit.
pub(super) fn count(value: f64) -> String {
    match value {
        value if value >= 9.95e6 => format!("{:.0} M", value / 1e6),
        value if value >= 9.95e5 => format!("{:.1} M", value / 1e6),
        value if value >= 9.95e3 => format!("{:.0} k", value / 1e3),
        value => format!("{value:.0}"),
    }
}
