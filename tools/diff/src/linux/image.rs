//! What the comparing process knows of its own executable.

use super::{OracleError, child};

/// The mappings of the running executable, and what follows them without a gap (its zeroed data).
pub(super) fn kept() -> Result<(u64, u64), OracleError> {
    let text = std::fs::read_to_string("/proc/self/maps").map_err(OracleError::Proc)?;
    let code = child::template as *const () as u64;
    let rows: Vec<(u64, u64, &str)> = text
        .lines()
        .filter_map(|line| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let name = rest.split_ascii_whitespace().nth(4).unwrap_or("");
            Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?, name))
        })
        .collect();
    let name = rows.iter().find(|row| (row.0..row.1).contains(&code)).map_or("", |row| row.2);
    let start = rows.iter().find(|row| row.2 == name).map_or(0, |row| row.0);
    let mut end = rows.iter().rfind(|row| row.2 == name).map_or(0, |row| row.1);
    for row in rows.iter().filter(|row| row.2.is_empty()) {
        end = if row.0 == end { row.1 } else { end };
    }
    Ok((start, end))
}

/// Where the program break starts.
pub(super) fn initial_break() -> Result<u64, OracleError> {
    let stat = std::fs::read_to_string("/proc/self/stat").map_err(OracleError::Proc)?;
    let field = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(47 - 3)?.parse().ok());
    field.ok_or(OracleError::Setup { step: "no program break in /proc/self/stat", errno: 0 })
}
