//! Files of the kernel's that have a name and a number in each line, as `/proc/vmstat` and `memory.stat`
//! have.

/// The number of the line `NAME NUMBER`; zero of one that this kernel does not have.
pub(crate) fn field(text: &str, name: &str) -> u64 {
    let mut fields = text.lines().filter_map(|line| line.split_once(' '));
    fields.find(|(field, _)| *field == name).and_then(|(_, number)| number.trim().parse().ok()).unwrap_or(0)
}
