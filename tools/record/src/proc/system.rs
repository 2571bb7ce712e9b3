//! Facts of the whole machine.

use super::Keyed;
use crate::sys::mount;
use quire_trace::event::ThpMode;
use std::ffi::{CStr, OsStr};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A number from a file of `/proc/sys`.
pub(crate) fn sysctl(name: &str) -> Option<u64> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok()?.trim().parse().ok()
}

/// The folder of the settings of transparent huge pages.
const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// Files in it that do not belong to a size.
const THP_FILES: [&str; 12] = [
    "enabled",
    "defrag",
    "use_zero_page",
    "shrink_underused",
    "shmem_enabled",
    "khugepaged/max_ptes_none",
    "khugepaged/max_ptes_shared",
    "khugepaged/max_ptes_swap",
    "khugepaged/pages_to_scan",
    "khugepaged/scan_sleep_millisecs",
    "khugepaged/alloc_sleep_millisecs",
    "khugepaged/defrag",
];

/// The value of a settings file: of a choice, the word in brackets. `None` if there is no such file.
fn thp_file(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("{THP}/{name}")).ok()?;
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    Some(chosen.map_or(text.trim(), |(chosen, _)| chosen).to_owned())
}

/// The settings of transparent huge pages that this kernel has: files and what they say. Those of the sizes
/// follow the common ones, the smallest first.
pub(crate) fn thp_files() -> Vec<(String, String)> {
    let folders = fs::read_dir(THP).into_iter().flatten().flatten();
    let kilobytes = |name: &str| name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse::<u64>().ok();
    let mut sizes: Vec<u64> = folders.filter_map(|folder| kilobytes(folder.file_name().to_str()?)).collect();
    sizes.sort_unstable();
    let of_size = |size: u64| ["enabled", "shmem_enabled"].map(|file| format!("hugepages-{size}kB/{file}"));
    let sizes = sizes.into_iter().flat_map(of_size);
    let names = THP_FILES.map(str::to_owned).into_iter().chain(sizes);
    names.filter_map(|name| thp_file(&name).map(|text| (name, text))).collect()
}

/// When transparent huge pages are used.
pub(crate) fn thp() -> ThpMode {
    match thp_file("enabled").as_deref() {
        Some("always") => ThpMode::Always,
        Some("madvise") => ThpMode::Madvise,
        Some("never") => ThpMode::Never,
        _ => ThpMode::Unknown,
    }
}

/// Bytes that Linux maps around a page of a file that is touched. `None` where debugfs cannot be read.
pub(crate) fn fault_around() -> Option<u64> {
    const NAME: &str = "fault_around_bytes";
    let text = fs::read_to_string(format!("/sys/kernel/debug/{NAME}"))
        .or_else(|_| mount::read_in(&mount::detached(c"debugfs")?, NAME));
    text.ok()?.trim().parse().ok()
}

/// Bytes that Linux reads ahead of files of the file system that a program lies on.
pub(crate) fn read_ahead(program: &OsStr) -> Option<u64> {
    let device = fs::metadata(program_file(program)?).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let text = fs::read_to_string(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb")).ok()?;
    text.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The file of a program, which is searched for as exec does.
fn program_file(program: &OsStr) -> Option<PathBuf> {
    let direct = Path::new(program);
    if direct.components().count() > 1 {
        return Some(direct.to_path_buf());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
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
