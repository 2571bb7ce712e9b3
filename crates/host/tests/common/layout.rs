//! A Linux process's layout, and the same on Quire.

use crate::common::{HostSpace, PAGE};
use crate::linux::{Child, Reply};
use quire_arch::{VirtAddr, VirtRange};
use quire_mm::{Layout, Limits, Mapping, Overcommit, SMAPS_MNEMONICS, VmFlags};

/// One mapping of a process, as far as both sides know it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) flags: VmFlags,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut flags = String::new();
        let _ = quire_mm::text::vm_flags(self.flags, &mut flags);
        write!(f, "{:#x}-{:#x} {}", self.start, self.end, flags.trim_start_matches("VmFlags: ").trim_end())
    }
}

/// Flags that Linux shows; the others are Quire's own.
fn shown() -> VmFlags {
    SMAPS_MNEMONICS.iter().fold(VmFlags::empty(), |all, (flag, _)| all | *flag)
}

/// The regions in a text of `/proc/PID/smaps`, with whether they show a file.
pub(crate) fn parse_smaps(text: &str) -> Vec<(Region, bool)> {
    let mut regions = Vec::new();
    let mut head: Option<(u64, u64, bool)> = None;
    for line in text.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            let words: Vec<&str> = flags.split_whitespace().collect();
            let known = SMAPS_MNEMONICS.iter().filter(|(_, name)| words.contains(name));
            let flags = known.fold(VmFlags::empty(), |all, (flag, _)| all | *flag);
            if let Some((start, end, file)) = head.take()
                && end < 1 << 47
            {
                regions.push((Region { start, end, flags }, file));
            }
        } else if let Some((range, rest)) = line.split_once(' ')
            && let Some((start, end)) = range.split_once('-')
            && let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16))
        {
            let inode = rest.split_whitespace().nth(3).unwrap_or("0");
            head = Some((start, end, inode != "0"));
        }
    }
    regions
}

/// The regions in a text of `/proc/PID/maps`, with the access flags only.
pub(crate) fn parse_maps(text: &str) -> Vec<Region> {
    let mut regions = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(access)) = (words.next(), words.next()) else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let (Ok(start), Ok(end)) = (u64::from_str_radix(start, 16), u64::from_str_radix(end, 16)) else {
            continue;
        };
        let mut flags = VmFlags::empty();
        for (letter, flag) in
            [('r', VmFlags::READ), ('w', VmFlags::WRITE), ('x', VmFlags::EXEC), ('s', VmFlags::MAYSHARE)]
        {
            flags.set(flag, access.contains(letter));
        }
        if end < 1 << 47 {
            regions.push(Region { start, end, flags });
        }
    }
    regions
}

/// Quire's mappings, with the flags that `parse_smaps` (deep) or `parse_maps` shows.
pub(crate) fn regions_of(space: &HostSpace<'_>, deep: bool) -> Vec<Region> {
    let plain = VmFlags::READ | VmFlags::WRITE | VmFlags::EXEC | VmFlags::MAYSHARE;
    let mask = if deep { shown() } else { plain };
    let mut regions = Vec::new();
    space.for_each_mapping(|mapping| {
        regions.push(Region {
            start: mapping.range.start().0,
            end: mapping.range.end().0,
            flags: mapping.flags & mask,
        });
    });
    regions
}

/// A child's layout before its first call.
pub(crate) struct Start {
    pub(crate) layout: Layout,
    pub(crate) limits: Limits,
    pub(crate) overcommit: Overcommit,
    pub(crate) regions: Vec<(Region, bool)>,
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line[name.len()..].split_whitespace().find_map(|word| word.parse().ok())
}

/// A soft limit; what is not a number is no limit.
fn limit(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(u64::MAX)
}

fn number_in(path: &str) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

impl Start {
    pub(crate) fn of(child: &Child) -> Self {
        let call = |number, args| match child.call(number, args) {
            Reply::Value(value) => value as u64,
            Reply::Signal(..) => panic!("a call gets no signal"),
        };
        let brk = call(12, [0; 6]);
        let probe = call(9, [0, PAGE, 0, 0x22, u64::MAX, 0]);
        let regions = parse_smaps(&child.text("smaps"));
        call(11, [probe, PAGE, 0, 0, 0, 0]);
        // The highest mapping below the stack ends where the search for free ranges begins, or the probe does.
        let below_stack = regions.iter().take_while(|(region, _)| !region.flags.contains(VmFlags::GROWSDOWN));
        let base = below_stack.map(|(region, _)| region.end).max().unwrap_or(probe + PAGE);
        let regions = parse_smaps(&child.text("smaps"));
        // A hint below the lowest address is raised to it. (What /proc says leaves security modules out.)
        let lowest = call(9, [PAGE, PAGE, 0, 0x22, u64::MAX, 0]);
        call(11, [lowest, PAGE, 0, 0, 0, 0]);

        let stat = child.text("stat");
        let fields: Vec<u64> = stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .split_whitespace()
            .map(|word| word.parse().unwrap_or(0))
            .collect();
        // Behind the name, the third field of proc(5) is the first.
        let stat = |number: usize| fields[number - 3];
        let layout = Layout {
            mmap_base: VirtAddr(base),
            mmap_legacy_base: VirtAddr(((1u64 << 47) / 3).next_multiple_of(PAGE)),
            top_down: true,
            mmap_min: VirtAddr(lowest),
            brk_start: VirtAddr(stat(47)),
            brk: VirtAddr(brk),
            data_bytes: stat(46) - stat(45),
        };
        let text = child.text("limits");
        let capabilities = child.text("status");
        let effective = capabilities.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(0);
        let limits = Limits {
            address_space: limit(&text, "Max address space"),
            data: limit(&text, "Max data size"),
            stack: limit(&text, "Max stack size"),
            locked: limit(&text, "Max locked memory"),
            may_lock: effective & (1 << 14) != 0,
            mappings: number_in("/proc/sys/vm/max_map_count"),
        };
        let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = |name| field(&info, name).unwrap_or(0);
        let overcommit = match number_in("/proc/sys/vm/overcommit_memory") {
            1 => Overcommit::Always,
            // Strict accounting depends on what the rest of the machine does: not comparable, so not modelled.
            _ => Overcommit::Guess { total_pages: Some((kib("MemTotal:") + kib("SwapTotal:")) / 4) },
        };
        Self { layout, limits, overcommit, regions }
    }

    /// Puts the child's mappings into `space`.
    pub(crate) fn install(&self, space: &HostSpace<'_>) {
        for (number, (region, is_file)) in self.regions.iter().enumerate() {
            let mapping = Mapping {
                range: VirtRange::new(VirtAddr(region.start), VirtAddr(region.end)),
                flags: region.flags,
                page_offset: if *is_file { 0 } else { region.start / PAGE },
                file: is_file.then_some(number as u64),
            };
            space.install(&mapping).expect("the child's mappings fit");
        }
    }

    /// Whether a mapping of the child itself lies in the range.
    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        self.regions.iter().any(|(region, _)| region.start < end && start < region.end)
    }

    /// Cuts `regions` where the child's own mappings begin or end: Linux may merge a new mapping with one that was
    /// there, depending on pages that Quire was not told about.
    pub(crate) fn cut(&self, regions: Vec<Region>) -> Vec<Region> {
        let mut cut = Vec::new();
        for mut region in regions {
            let mut borders: Vec<u64> = self
                .regions
                .iter()
                .flat_map(|(old, _)| [old.start, old.end])
                .filter(|border| region.start < *border && *border < region.end)
                .collect();
            borders.sort_unstable();
            for border in borders {
                cut.push(Region { end: border, ..region });
                region.start = border;
            }
            cut.push(region);
        }
        cut
    }
}
