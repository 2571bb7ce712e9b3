//! Facts of the whole machine.

use super::Keyed;
use crate::event::ThpMode;
use std::ffi::CStr;
use std::fs;

/// A number from a file of `/proc/sys`.
pub(crate) fn sysctl(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}

/// When transparent huge pages are used.
pub(crate) fn thp() -> ThpMode {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    match chosen.map(|(mode, _)| mode) {
        Some("always") => ThpMode::Always,
        Some("madvise") => ThpMode::Madvise,
        Some("never") => ThpMode::Never,
        _ => ThpMode::Unknown,
    }
}

/// Bytes of RAM and of swap space.
pub(crate) fn memory() -> (u64, u64) {
    let info = Keyed(fs::read_to_string("/proc/meminfo").unwrap_or_default());
    (info.bytes("MemTotal"), info.bytes("SwapTotal"))
}

/// The CPUs that are online, by number.
pub(crate) fn cpus() -> Vec<usize> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cpus.extend(first..=last);
        }
    }
    if cpus.is_empty() {
        cpus.push(0);
    }
    cpus
}

/// The kernel's release and the machine's name.
pub(crate) fn kernel() -> (String, String) {
    let names = rustix::system::uname();
    let text = |name: &CStr| name.to_string_lossy().into_owned();
    (text(names.release()), text(names.machine()))
}
