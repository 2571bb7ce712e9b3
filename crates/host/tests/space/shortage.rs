//! Machines that call the test while a thread looks for memory, or between two locks: see `short_pins`.

use crate::common::*;
use crate::short_pins::machine::{Machine, ONE, exhaust, frames, put_all, run_on};
use quire_frame::PcpTechnique;
use quire_host::swap::HostRam;
use quire_mm::{Memory, MemoryConfig};
use quire_reclaim::Policy;
use quire_space::{Need, OomOutcome, Reclaim, Space, Spaces, SpacesConfig};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

/// What is freed at the nth look for memory.
type Look = Box<dyn Fn(u64) -> u64 + Send + Sync>;
type Before = Box<dyn Fn() + Send + Sync>;

/// Frees what a test says. When a program is to be killed what it has taken is free again.
#[derive(Default)]
pub(crate) struct Looks {
    look: OnceLock<Look>,
    before_a_kill: OnceLock<Before>,
    before_page_out: OnceLock<Before>,
    looks: AtomicU64,
    kills: AtomicU64,
    pub(crate) taken: Mutex<Vec<Pfn>>,
}

impl Looks {
    pub(crate) fn at_each(&self, look: impl Fn(u64) -> u64 + Send + Sync + 'static) {
        assert!(self.look.set(Box::new(look)).is_ok());
    }

    pub(crate) fn before_a_kill(&self, action: impl Fn() + Send + Sync + 'static) {
        assert!(self.before_a_kill.set(Box::new(action)).is_ok());
    }

    /// When pages that a program pages out are off their lists.
    pub(crate) fn before_page_out(&self, action: impl Fn() + Send + Sync + 'static) {
        assert!(self.before_page_out.set(Box::new(action)).is_ok());
    }

    pub(crate) fn take_all(&self, spaces: &Spaces<Machine>) {
        spaces.frames().limbo().reap_all_in_portions();
        self.taken.lock().unwrap().extend(exhaust(spaces.frames(), ONE));
    }

    pub(crate) fn give_back(&self, spaces: &Spaces<Machine>) -> u64 {
        let taken = core::mem::take(&mut *self.taken.lock().unwrap());
        let frames = taken.len() as u64;
        put_all(spaces.frames(), taken, Order::ZERO);
        frames
    }

    /// Gives one frame back.
    pub(crate) fn give_one_back(&self, spaces: &Spaces<Machine>) {
        put_all(spaces.frames(), self.taken.lock().unwrap().pop(), Order::ZERO);
    }

    /// Looks for memory, and for programs to kill.
    pub(crate) fn counts(&self) -> [u64; 2] {
        [&self.looks, &self.kills].map(|count| count.load(Ordering::Relaxed))
    }
}

impl Reclaim<Machine> for Looks {
    fn make_room(&self, _: &Spaces<Machine>, _: Need) -> u64 {
        self.look.get().unwrap()(self.looks.fetch_add(1, Ordering::Relaxed))
    }

    fn out_of_memory(&self, spaces: &Spaces<Machine>, _: Need) -> OomOutcome {
        self.kills.fetch_add(1, Ordering::Relaxed);
        self.before_a_kill.get().inspect(|action| action());
        self.give_back(spaces);
        OomOutcome::Freed
    }

    fn page_out(&self, spaces: &Spaces<Machine>, folios: &mut dyn Iterator<Item = Pfn>) -> u64 {
        let isolated: Vec<_> = folios.collect();
        self.before_page_out.get().inspect(|action| action());
        Policy.page_out(spaces, &mut isolated.into_iter())
    }

    fn throttle(&self, _: &Spaces<Machine>, _: MemcgId) {}
}

/// Spaces with this reclaim, on a machine with so many frames and CPUs and a swap device of 64 slots. This
/// thread runs on the first CPU.
pub(crate) fn spaces_of(
    ram: u64,
    cpus: usize,
    policy: HugePolicy,
) -> (&'static Spaces<Machine>, &'static Looks) {
    run_on(0);
    let looks: &'static Looks = Box::leak(Box::default());
    let memcgs = Memcgs::new(frames(&[(0, ram)], cpus, PcpTechnique::All)).unwrap();
    let spaces = spaces_on(memcgs, policy, looks);
    quire_space::swapon(spaces, HostRam::new(64).unwrap(), SwapOnOptions::default()).unwrap();
    (spaces, looks)
}

/// Spaces that overcommit memory and kill programs.
pub(crate) fn spaces_on(
    memcgs: Memcgs<Machine>,
    policy: HugePolicy,
    reclaim: &'static dyn Reclaim<Machine>,
) -> &'static Spaces<Machine> {
    let config = SpacesConfig {
        overcommit: Overcommit::Always,
        oom: OomAction::Kill,
        huge: HugeConfig { policy, ..HugeConfig::default() },
        ..SpacesConfig::default()
    };
    let swap = Swap::new(memcgs, SwapTechnique::default());
    let files = Spaces::no_files(&swap);
    Box::leak(Box::new(Spaces::new(swap, files, config, reclaim).unwrap()))
}

pub(crate) fn create(spaces: &'static Spaces<Machine>) -> &'static Space<'static, Machine> {
    Box::leak(Box::new(create_owned(spaces)))
}

/// One that can exit.
pub(crate) fn create_owned(spaces: &'static Spaces<Machine>) -> Space<'static, Machine> {
    let layout = Layout::standard(<Machine as Platform>::Paging::USER_END);
    Space::create(spaces, layout, Limits::default()).unwrap()
}

/// The memory of a machine with so many frames and CPUs, which keeps nothing back. This thread runs on the
/// first CPU.
pub(crate) fn memory_of(
    ram: u64,
    cpus: usize,
    change: impl FnOnce(&mut MemoryConfig),
) -> &'static Memory<Machine> {
    run_on(0);
    let overcommit = Overcommit::Always;
    let mut config = MemoryConfig { overcommit, min_free_kib: Some(0), ..MemoryConfig::default() };
    change(&mut config);
    Box::leak(Box::new(Memory::new(Machine::new(&[(0, ram)], cpus), config).unwrap()))
}
