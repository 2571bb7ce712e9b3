//! Mappings of the kernel's own that a call may not divide: the vdso and its data, as every process has them.
//! The random programs have none.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use nix::sys::wait::waitpid;
use nix::unistd::{ForkResult, fork, pipe, read, write};
use quire_arch::{PAGE_SIZE, VirtAddr, VirtRange};
use quire_host::{HostConfig, Machine};
use quire_mm::MemoryConfig;
use quire_mm::abi::{self, CallNumber, NoFiles, UserMemory};
use quire_mm::space::{FaultError, Mapping, VmFlags};

const NAMES: [&str; 3] = ["[vdso]", "[vvar]", "[vvar_vclock]"];
/// Nothing lies there.
const FREE: u64 = 1 << 40;

const MMAP: u32 = 9;
const MPROTECT: u32 = 10;
const MUNMAP: u32 = 11;
const MREMAP: u32 = 25;
const MADVISE: u32 = 28;
const MLOCK: u32 = 149;

const MADV_RANDOM: u64 = 1;
/// `MREMAP_MAYMOVE`, and that with `MREMAP_FIXED`.
const MAYMOVE: u64 = 1;
const MOVE: u64 = 3;
/// `MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED`.
const FIXED: u64 = 0x32;

/// A call about one of the mappings, with what it says in an error.
type Made = (String, u32, [u64; 6]);

/// None of the calls here writes to the program's memory.
struct Nowhere;

impl UserMemory for Nowhere {
    fn write(&self, _: VirtAddr, _: &[u8]) -> Result<(), FaultError> {
        Err(FaultError::NotMapped)
    }
}

/// The mappings of this process that have one of the names: where they are, and what may be done with them.
fn special() -> Vec<(String, VirtRange, VmFlags)> {
    let text = std::fs::read_to_string("/proc/self/maps").expect("the mappings");
    let named = text.lines().filter_map(|line| {
        let name = NAMES.into_iter().find(|name| line.ends_with(name))?;
        let (range, rest) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let at = |digits| u64::from_str_radix(digits, 16).ok().map(VirtAddr);
        let mut flags = VmFlags::READ | VmFlags::MAY_ACCESS | VmFlags::DONTEXPAND | VmFlags::WHOLE;
        flags.set(VmFlags::EXEC, rest.starts_with("r-x"));
        Some((name.to_owned(), VirtRange::new(at(start)?, at(end)?), flags))
    });
    named.collect()
}

/// Calls about each page of a mapping, and about more or less than all of it. None of them may succeed in
/// dividing it.
fn calls(name: &str, range: VirtRange) -> Vec<Made> {
    let (start, len) = (range.start().0, range.end().0 - range.start().0);
    let mut all = Vec::new();
    let mut add = |what: &str, number, args| all.push((format!("{what} of {name}"), number, args));
    for page in (0..len).step_by(PAGE_SIZE as usize) {
        let at = start + page;
        let nth = page / PAGE_SIZE;
        add(&format!("munmap, page {nth}"), MUNMAP, [at, PAGE_SIZE, 0, 0, 0, 0]);
        add(&format!("mprotect, page {nth}"), MPROTECT, [at, PAGE_SIZE, 0, 0, 0, 0]);
        add(&format!("madvise, page {nth}"), MADVISE, [at, PAGE_SIZE, MADV_RANDOM, 0, 0, 0]);
        add(&format!("mremap, page {nth}"), MREMAP, [at, PAGE_SIZE, PAGE_SIZE, MOVE, FREE, 0]);
        add(&format!("mmap, page {nth}"), MMAP, [at, PAGE_SIZE, 0, FIXED, u64::MAX, 0]);
        add(&format!("mlock, page {nth}"), MLOCK, [at, PAGE_SIZE, 0, 0, 0, 0]);
    }
    add("mremap to less", MREMAP, [start, len, PAGE_SIZE, 0, 0, 0]);
    add("mremap of all to less", MREMAP, [start, len, PAGE_SIZE, MOVE, FREE, 0]);
    add("mremap to more", MREMAP, [start, len, len + PAGE_SIZE, MAYMOVE, 0, 0]);
    all
}

/// What Linux returns. Made by a child: what it should have refused is not missing here.
fn on_linux(calls: &[Made]) -> Vec<i64> {
    let (results, into) = pipe().expect("a pipe");
    // SAFETY: the child makes system calls about mappings that it does not use, and ends.
    match unsafe { fork() }.expect("a child") {
        ForkResult::Child => {
            for (_, number, [a, b, c, d, e, f]) in calls {
                // SAFETY: the call is about mappings that nothing here uses.
                let value = unsafe { libc::syscall((*number).into(), *a, *b, *c, *d, *e, *f) };
                let value = if value == -1 { -i64::from(nix::errno::Errno::last_raw()) } else { value };
                let _ = write(&into, &value.to_ne_bytes());
            }
            // SAFETY: ends the child without anything that this process would do at its end.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(into);
            let mut values = Vec::new();
            let mut bytes = [0; 8];
            while read(&results, &mut bytes) == Ok(bytes.len()) {
                values.push(i64::from_ne_bytes(bytes));
            }
            waitpid(child, None).expect("the child ends");
            values
        }
    }
}

#[test]
fn no_part_of_the_vdso_is_split_off_on_either_side() {
    let config = HostConfig::with_ram(16 << 20).paranoid();
    let machine: Machine = Machine::new(&config, MemoryConfig::default()).expect("a machine");
    let mut refused = 0;
    for (name, range, flags) in special() {
        if range.pages() == 1 {
            // It has no parts.
            continue;
        }
        let space = machine.memory().create_space().expect("a space");
        let page_offset = range.start().0 / PAGE_SIZE;
        space.install(&Mapping { range, flags, page_offset, file: None }).expect("room for the mapping");
        let calls = calls(&name, range);
        let linux = on_linux(&calls);
        assert_eq!(linux.len(), calls.len(), "the child made all calls");
        if linux.contains(&-i64::from(libc::EPERM)) {
            println!("{name} is not compared: this Linux seals it");
            continue;
        }
        for ((what, number, args), linux) in calls.into_iter().zip(linux) {
            let number = CallNumber::from_raw(number);
            assert_eq!(abi::call(&space, number, args, &NoFiles, &Nowhere).raw(), Some(linux), "{what}");
            refused += u64::from(linux < 0);
        }
    }
    if refused == 0 {
        println!("nothing is compared: this Linux shows its processes no such mapping of more than a page");
    }
}
