//! The state of an oracle process before its first operation, so that a Quire space can begin
//! alike.

use super::text::smaps;
use super::{file, probes};
use crate::observation::Region;
use crate::program::names::{CAP_IPC_LOCK, CAP_IPC_OWNER, CAP_SYS_RAWIO};
use crate::program::{Base, Store};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statfs::{BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};
use quire_arch::{PAGE_SIZE, VirtAddr, VirtRange};
use quire_host::HostPlatform;
use quire_mm::space::{Error, Layout, Limits, Mapping, Overcommit, Rights, Space, VmFlags};
use std::fs::{File, OpenOptions};
use std::io::{Seek as _, SeekFrom};

/// A stretch of address space, end exclusive.
pub(crate) type Stretch = (u64, u64);

/// A process before its first operation.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) layout: Layout,
    pub(crate) limits: Limits,
    /// The privileges that it has, and can regain after it dropped them.
    pub(crate) rights: Rights,
    /// Programs have a name space of SysV shared memory each.
    pub(crate) has_ipc: bool,
    /// Whether permissions of segments do not matter to it (CAP_IPC_OWNER).
    pub(crate) passes_modes: bool,
    /// Its user and group.
    pub(crate) owner: (u32, u32),
    /// Hard limits of the data, the stack, locked memory and the address space.
    pub(crate) hard: Limits,
    pub(crate) overcommit: Overcommit,
    /// The oracle's own mappings, and whether they show a file.
    own: Vec<(Stretch, VmFlags, bool)>,
    /// What lies between them.
    pub(crate) gaps: Vec<Stretch>,
    size: u64,
    data: u64,
    /// What the files of programs are like.
    stores: [StoreFacts; Store::ALL.len()],
}

/// What a store of files is like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreFacts {
    /// The largest size that a file can have.
    pub(crate) max_bytes: u64,
    /// Large mappings are aligned for huge pages.
    pub(crate) huge_alignment: bool,
    /// It is mounted without execution.
    pub(crate) no_exec: bool,
    /// What is written past the end stays when the file grows.
    pub(crate) tail_stays: bool,
    /// A call that writes 2 MiB makes a folio of that size, which a mapping has by one entry.
    pub(crate) has_large_folios: bool,
    /// Calls make ranges zeros (`FALLOC_FL_ZERO_RANGE`).
    pub(crate) zeroes: bool,
    /// Calls take ranges out and put some in, of multiples of so many bytes.
    pub(crate) moves: Option<u64>,
}

impl StoreFacts {
    /// Of the open file at `path`, as only a look at it tells.
    fn of(path: &str) -> std::io::Result<Self> {
        /// File systems whose large mappings Linux aligns: ext4, xfs, btrfs.
        const ALIGNED: [FsType; 3] = [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC];
        let mut file = OpenOptions::new().read(true).write(true).open(path)?;
        let (mut fits, mut past) = (0, 1 << 63);
        while past - fits > 1 {
            let middle = fits + (past - fits) / 2;
            match file.seek(SeekFrom::Start(middle)) {
                Ok(_) => fits = middle,
                Err(_) => past = middle,
            }
        }
        let system = statfs(path)?.filesystem_type();
        let (huge_alignment, tail_stays) = (ALIGNED.contains(&system), system == TMPFS_MAGIC);
        let no_exec = statvfs(path)?.flags().contains(FsFlags::ST_NOEXEC);
        let kept_size = FallocateFlags::FALLOC_FL_ZERO_RANGE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let zeroes = fallocate(&file, kept_size, 0, PAGE_SIZE.cast_signed()).is_ok();
        let moves = unit_of_moves(&file);
        // Last, since the file is short after it.
        let has_large_folios = huge_alignment && probes::has_large_folios(path)?;
        Ok(Self { max_bytes: fits, huge_alignment, no_exec, tail_stays, has_large_folios, zeroes, moves })
    }
}

/// What the length of a range is a multiple of that can be taken out of this file.
fn unit_of_moves(file: &File) -> Option<u64> {
    let units = (9..=PAGE_SIZE.trailing_zeros()).map(|shift| 1_i64 << shift);
    let taken_out = |unit| fallocate(file, FallocateFlags::FALLOC_FL_COLLAPSE_RANGE, 0, unit);
    let mut tried = units.map(|unit| (unit, taken_out(unit)));
    let (unit, result) = tried.find(|(_, result)| *result != Err(Errno::EINVAL))?;
    result.is_ok().then_some(unit.cast_unsigned())
}

/// What the template found out by itself.
pub(super) struct Measured {
    pub(super) pid: i32,
    pub(super) brk: u64,
    pub(super) highest: u64,
    pub(super) upwards: u64,
    pub(super) lowest: u64,
    pub(super) has_ipc: bool,
    pub(super) own: Vec<Stretch>,
}

fn number_in(path: &str) -> u64 {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// A line `name   soft   hard   unit` of `/proc/PID/limits`; what is not a number is no limit.
fn limit(text: &str, name: &str) -> (u64, u64) {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("");
    let mut words = line.split_whitespace().map(|word| word.parse().unwrap_or(u64::MAX));
    (words.next().unwrap_or(u64::MAX), words.next().unwrap_or(u64::MAX))
}

/// The capabilities that memory calls check, if the process is in the initial user namespace: only there
/// they count.
fn capabilities_of_process(pid: i32) -> std::io::Result<u64> {
    const INITIAL: &str = "user:[4026531837]";
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|word| u64::from_str_radix(word.trim(), 16).ok()).unwrap_or(0);
    let initial = std::fs::read_link(format!("/proc/{pid}/ns/user"))?.as_os_str() == INITIAL;
    Ok(if initial { effective } else { 0 })
}

/// The effective user and group.
fn owner_of_process(pid: i32) -> std::io::Result<(u32, u32)> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let effective = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    Ok((effective("Uid:"), effective("Gid:")))
}

/// The rights that bits of capabilities stand for.
pub(crate) fn rights_of(bits: u64) -> Rights {
    let mut rights = Rights::empty();
    rights.set(Rights::LOCK, bits & CAP_IPC_LOCK != 0);
    rights.set(Rights::MAP_LOW, bits & CAP_SYS_RAWIO != 0);
    rights
}

fn limits_of(pid: i32) -> std::io::Result<(Limits, Limits)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let (address_space, data) = (limit(&text, "Max address space"), limit(&text, "Max data size"));
    let (stack, locked) = (limit(&text, "Max stack size"), limit(&text, "Max locked memory"));
    let soft = Limits {
        address_space: address_space.0,
        data: data.0,
        stack: stack.0,
        locked: locked.0,
        mappings: number_in("/proc/sys/vm/max_map_count"),
    };
    let hard =
        Limits { address_space: address_space.1, data: data.1, stack: stack.1, locked: locked.1, ..soft };
    Ok((soft, hard))
}

fn overcommit() -> Overcommit {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = |name| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    match number_in("/proc/sys/vm/overcommit_memory") {
        1 => Overcommit::Always,
        // Strict accounting depends on what the rest of the machine does: not comparable, so not modelled.
        _ => Overcommit::Guess { total_pages: Some((kib("MemTotal:") + kib("SwapTotal:")) / 4) },
    }
}

impl Start {
    pub(super) fn of(measured: &Measured) -> std::io::Result<Self> {
        let Measured { pid, brk, highest, upwards, lowest, has_ipc, .. } = *measured;
        let mut own = Vec::new();
        let text = std::fs::read_to_string(format!("/proc/{pid}/smaps"))?;
        smaps(&text, |detail, file| own.push(((detail.start, detail.end), detail.flags, file)));
        let mut gaps = Vec::new();
        let mut from = 0;
        for (start, end) in &measured.own {
            gaps.push((from, *start));
            from = *end;
        }
        gaps.push((from, (1 << 47) - PAGE_SIZE));
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        let fields: Vec<u64> = fields.map(|word| word.parse().unwrap_or(0)).collect();
        // Behind the name, the third field of proc(5) is the first.
        let stat = |number: usize| fields.get(number - 3).copied().unwrap_or(0);
        let layout = Layout {
            mmap_base: VirtAddr(highest + PAGE_SIZE),
            // Random on Linux. Where it could not be seen nothing is large enough to be placed by it.
            mmap_legacy_base: match upwards {
                0 => VirtAddr(((1u64 << 47) / 3).next_multiple_of(PAGE_SIZE)),
                seen => VirtAddr(seen),
            },
            top_down: true,
            mmap_min: VirtAddr(lowest),
            fixed_min: VirtAddr(number_in("/proc/sys/vm/mmap_min_addr")),
            brk_start: VirtAddr(stat(47)),
            brk: VirtAddr(brk),
            data_bytes: stat(46) - stat(45),
        };
        let (limits, hard) = limits_of(pid)?;
        let sum = |wanted: fn(VmFlags) -> bool| {
            own.iter().filter(|(_, flags, _)| wanted(*flags)).map(|((start, end), ..)| end - start).sum()
        };
        let (size, data) = (sum(|_| true), sum(VmFlags::is_data));
        let capabilities = capabilities_of_process(pid)?;
        let (rights, passes_modes) = (rights_of(capabilities), capabilities & CAP_IPC_OWNER != 0);
        let owner = owner_of_process(pid)?;
        let [memory, disk, large] =
            file::KEPT.map(|kept| StoreFacts::of(&format!("/proc/{pid}/fd/{}", kept[0])));
        let (overcommit, stores) = (overcommit(), [memory?, disk?, large?]);
        Ok(Self {
            layout,
            limits,
            rights,
            has_ipc,
            passes_modes,
            owner,
            hard,
            overcommit,
            own,
            gaps,
            size,
            data,
            stores,
        })
    }

    /// Puts the oracle's own mappings into `space`.
    pub(crate) fn install(&self, space: &Space<'_, HostPlatform>) -> Result<(), Error> {
        for (number, ((start, end), flags, file)) in self.own.iter().enumerate() {
            space.install(&Mapping {
                range: VirtRange::new(VirtAddr(*start), VirtAddr(*end)),
                flags: *flags,
                page_offset: if *file { 0 } else { start / PAGE_SIZE },
                // Numbers that no descriptor of a program stands for.
                file: file.then_some(1 << 32 | number as u64),
            })?;
        }
        Ok(())
    }

    /// The store that a program has, which asks for this one: without large folios the other one there.
    pub(crate) fn store_for(&self, store: Store) -> Store {
        let lacks = store == Store::Large && !self.store(store).has_large_folios;
        if lacks { Store::Disk } else { store }
    }

    /// What the file of a program is like.
    pub(crate) fn store(&self, store: Store) -> StoreFacts {
        self.stores[store as usize]
    }

    /// What a base of an argument stands for.
    pub(crate) fn base(&self, base: Base) -> u64 {
        match base {
            Base::Break => self.layout.brk.0,
            Base::Size => self.size,
            Base::Data => self.data,
        }
    }

    /// Whether one of the oracle's own mappings lies in the range.
    pub(crate) fn touches(&self, start: u64, end: u64) -> bool {
        self.own.iter().any(|(own, ..)| own.0 < end && start < own.1)
    }

    /// Calls `visit` with the parts of a region that do not belong to the oracle.
    pub(crate) fn clip(&self, region: Region, mut visit: impl FnMut(Region)) {
        for &(from, to) in &self.gaps {
            let (start, end) = (region.start.max(from), region.end.min(to));
            if start < end {
                let skipped = if region.is_cached() { start - region.start } else { 0 };
                visit(Region { start, end, offset: region.offset + skipped, ..region });
            }
        }
    }
}
