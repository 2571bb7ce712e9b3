//! Memory calls from bytes.
//!
//! An input is a byte that selects the machine, then steps. The first byte of a step has the action in its
//! low six bits; bit 6 shifts its address within the page, bit 7 chooses the vCPU.
//!
//! Pages may be swapped out, memcgs have limits (`pressure`), and segments are shared (`segments`). What must
//! hold, whatever is called: the auditor finds nothing; a new page is zero; a word that is read is zero or
//! was written at this place of a page by this space, or by an ancestor before its fork, or in shared memory
//! by any; in the end nothing is in use that was not before.

mod calls;
mod machine;
mod pressure;
mod segments;
mod values;
mod words;

use crate::bytes::Bytes;
use calls::Calls;
use machine::Small;
use quire_arch::{Access, PAGE_SIZE, PagingFormat, VirtAddr, VirtRange};
use quire_frame::{FailAim, FailClass, FailPlan, FailSite};
use quire_host::{AccessError, HostPlatform, Program, Vcpu};
use quire_mm::abi::CallOutcome;
use quire_mm::shm::ShmNamespace;
use quire_mm::space::{
    FaultError, Limits, MapFlags, MapRequest, Mapping, PageState, Protection, Rights, Space, VmFlags,
};
use segments::Segments;
use std::rc::Rc;
use values::Values;
use words::{Life, Words};

/// Spaces that live at once.
const MOST_SPACES: usize = 4;
/// Pages that a space has from the start.
const INITIAL_PAGES: u64 = 16;
/// Steps between two audits, beside those that the input asks for.
const AUDIT_EVERY: u32 = 16;
/// The cost of all steps together, in bytes of page tables that are walked: a step that fills all memory with
/// tables of the zero page takes a thousand times as long as another, and a fuzzer would find nothing but
/// such.
const MOST_COST: u64 = 8 << 20;

/// Runs an input on a machine of its own.
pub(crate) fn run<F: PagingFormat>(bytes: &[u8], show: bool) {
    let mut bytes = Bytes::new(bytes);
    let Some(setting) = bytes.next() else { return };
    let small = Small::<F>::new(setting);
    small.prepare_memcgs();
    let before = small.in_use();
    let vcpus = [0, 1].map(|number| small.machine.vcpu(number).expect("the CPU is free"));
    let shm = Rc::new(small.machine.memory().create_shm().expect("all memory is free"));
    let mut play = Play::<F> {
        small: &small,
        vcpus: &vcpus,
        spaces: Vec::new(),
        current: 0,
        calls: Calls::default(),
        words: Words::default(),
        shm,
        segments: Segments::default(),
        show,
    };
    let (mut steps, mut cost) = (0, 0);
    while cost < MOST_COST
        && let Some(step) = bytes.next()
    {
        play.step(step, &mut bytes);
        steps += 1;
        if steps % AUDIT_EVERY == 0 {
            small.assert_audit();
        }
        cost += PAGE_SIZE + play.spaces.iter().map(|fuzzed| fuzzed.space.figures().page_tables).sum::<u64>();
    }
    small.fail_points().set(FailPlan::OFF);
    small.assert_audit();
    // In the order in which they came, not as a stack.
    for fuzzed in play.spaces.drain(..) {
        drop(fuzzed);
    }
    drop(play);
    small.relax();
    small.assert_audit();
    assert_eq!(small.in_use(), before, "frames or objects are lost");
    assert_eq!(small.machine.memory().spaces().commit().promised(), 0, "a promise is left");
    small.assert_tags_free();
}

/// A space, and what its words may be.
struct FuzzedSpace<'m, F: PagingFormat> {
    space: Space<'m, HostPlatform<F>>,
    life: Life,
}

/// The state of a running input.
struct Play<'m, F: PagingFormat> {
    small: &'m Small<F>,
    vcpus: &'m [Vcpu<F>; 2],
    spaces: Vec<FuzzedSpace<'m, F>>,
    /// The space that the steps work on.
    current: usize,
    calls: Calls,
    words: Words,
    shm: Rc<ShmNamespace<'m, HostPlatform<F>>>,
    segments: Segments,
    show: bool,
}

impl<F: PagingFormat> Play<'_, F> {
    fn step(&mut self, step: u8, bytes: &mut Bytes<'_>) {
        let cpu = usize::from(step >> 7);
        let shifted = step & 0x40 != 0;
        let what = step & 0x3f;
        match what {
            52 | 53 => return self.fork(cpu),
            54 => return self.drop_space(cpu),
            55 => return self.select(bytes),
            56 => return self.create(cpu),
            57 => return self.plan(bytes),
            60 => return self.small.reap(),
            62 => return self.pressure(cpu, bytes),
            63 => return self.segment(cpu, bytes),
            61 => return self.small.assert_audit(),
            _ => {}
        }
        if self.spaces.is_empty() {
            self.create(cpu);
        }
        if self.spaces.is_empty() {
            return;
        }
        match what {
            0..=40 => self.call(cpu, what, shifted, bytes),
            41..=45 => self.write(cpu, 1, bytes),
            46 => {
                let words = 1 + usize::from(bytes.byte()) * 4;
                self.write(cpu, words, bytes);
            }
            47..=49 => self.read(cpu, bytes),
            50 => self.touch(cpu, Access::Execute, shifted, bytes),
            51 => self.touch(cpu, Access::Write, shifted, bytes),
            58 => self.limit(bytes),
            59 => self.install(bytes),
            _ => self.touch(cpu, Access::Read, shifted, bytes),
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.show {
            eprintln!("{}", what());
        }
    }

    fn current_space(&self) -> &FuzzedSpace<'_, F> {
        &self.spaces[self.current]
    }

    fn address(&self, shifted: bool, bytes: &mut Bytes<'_>) -> VirtAddr {
        let shift = if shifted { u64::from(bytes.byte()) * 17 } else { 0 };
        let addr = Values::<F>::new(&self.calls.areas).address(bytes);
        VirtAddr(addr.wrapping_add(shift))
    }

    fn call(&mut self, cpu: usize, what: u8, shifted: bool, bytes: &mut Bytes<'_>) {
        let shift = if shifted { u64::from(bytes.byte()) * 17 } else { 0 };
        let call = self.calls.decode::<F>(what, shift, bytes);
        let space = &self.spaces[self.current].space;
        let outcome = self.vcpus[cpu].run(|| call.make(space));
        self.say(|| format!("space {}, CPU {cpu}: {call:x?} = {outcome:x?}", self.current));
        if let CallOutcome::Done(value) = outcome {
            self.calls.note::<F>(&call, value);
        }
    }

    fn write(&mut self, cpu: usize, count: usize, bytes: &mut Bytes<'_>) {
        let addr = VirtAddr(self.address(false, bytes).0.wrapping_add(u64::from(bytes.byte()) * 16));
        let program = self.vcpus[cpu].program(&self.spaces[self.current].space);
        let word = self.words.write(self.spaces[self.current].life.id(), addr, count);
        // What is not mapped of shared memory may be there.
        let fresh = self.is_absent(addr) && !self.is_shared(addr);
        let result = program.write(addr, &word.to_ne_bytes().repeat(count));
        self.say(|| {
            format!("space {}, CPU {cpu}: write {count} times {word} at {addr:x?} = {result:?}", self.current)
        });
        if passed(&result) {
            let read = program.read_u64(addr);
            if is_starved(&read) {
                return;
            }
            assert_eq!(read, Ok(word), "at {addr:x?} there is not what was written");
            if fresh {
                assert_rest_is_zero(&program, addr, count);
            }
        }
    }

    /// Whether the page of `addr` has no frame of its own.
    fn is_absent(&self, addr: VirtAddr) -> bool {
        let start = addr.page_start();
        let page = VirtRange::new(start, VirtAddr(start.0.wrapping_add(PAGE_SIZE)));
        let mut absent = true;
        self.current_space().space.mappings().pagemap(page, |_, state| absent &= state == PageState::Zero);
        absent
    }

    fn read(&mut self, cpu: usize, bytes: &mut Bytes<'_>) {
        let addr = VirtAddr(self.address(false, bytes).0.wrapping_add(u64::from(bytes.byte()) * 16));
        let result = self.vcpus[cpu].program(&self.current_space().space).read_u64(addr);
        self.say(|| format!("space {}, CPU {cpu}: read at {addr:x?} = {result:?}", self.current));
        if passed(&result)
            && let Ok(word) = result
        {
            self.words.check(&self.current_space().life, addr, word, self.is_shared(addr));
        }
    }

    fn touch(&mut self, cpu: usize, access: Access, shifted: bool, bytes: &mut Bytes<'_>) {
        let addr = self.address(shifted, bytes);
        let result = self.vcpus[cpu].program(&self.current_space().space).touch(addr, access);
        self.say(|| format!("space {}, CPU {cpu}: {access:?} at {addr:x?} = {result:?}", self.current));
        passed(&result);
    }

    fn create(&mut self, cpu: usize) {
        if self.spaces.len() == MOST_SPACES {
            return;
        }
        let result = self.vcpus[cpu].run(|| self.small.create_space());
        self.say(|| format!("a new space: {result:?}"));
        if let Ok(space) = result {
            self.spaces.push(FuzzedSpace { space, life: self.words.life() });
            self.current = self.spaces.len() - 1;
            if self.small.furnished {
                self.furnish(cpu);
            }
        }
    }

    /// Maps and fills some pages around the border of all tables, so that the first step finds something.
    fn furnish(&mut self, cpu: usize) {
        let start = VirtAddr(Values::<F>::home() - INITIAL_PAGES / 2 * PAGE_SIZE);
        let FuzzedSpace { space, life } = &self.spaces[self.current];
        let request = MapRequest::anonymous(INITIAL_PAGES * PAGE_SIZE, Protection::READ | Protection::WRITE);
        let mapped = self.vcpus[cpu].run(|| space.mmap(&request.at(start, MapFlags::FIXED)));
        if mapped.is_ok() {
            let program = self.vcpus[cpu].program(space);
            for page in (0..INITIAL_PAGES).step_by(2) {
                let addr = VirtAddr(start.0 + page * PAGE_SIZE);
                let word = self.words.write(life.id(), addr, 1);
                passed(&program.write_u64(addr, word));
            }
        }
        for _ in 0..4 {
            self.calls.areas.note(start.0);
        }
    }

    fn fork(&mut self, cpu: usize) {
        if self.spaces.is_empty() || self.spaces.len() == MOST_SPACES {
            return;
        }
        let parent = &self.spaces[self.current];
        let result = self.vcpus[cpu].run(|| parent.space.fork());
        self.say(|| format!("space {}, CPU {cpu}: fork = {result:?}", self.current));
        if let Ok(space) = result {
            let life = self.words.child_of(&parent.life);
            self.spaces.push(FuzzedSpace { space, life });
        }
    }

    fn drop_space(&mut self, cpu: usize) {
        if self.spaces.is_empty() {
            return;
        }
        self.say(|| format!("CPU {cpu}: space {} goes", self.current));
        let current_space = self.spaces.swap_remove(self.current);
        self.vcpus[cpu].run(|| drop(current_space.space));
        self.current = 0;
    }

    fn select(&mut self, bytes: &mut Bytes<'_>) {
        if !self.spaces.is_empty() {
            self.current = usize::from(bytes.byte()) % self.spaces.len();
        }
    }

    /// Makes allocations fail from here on.
    fn plan(&mut self, bytes: &mut Bytes<'_>) {
        let (what, number) = (bytes.byte(), u64::from(bytes.byte()));
        let plan = match what & 3 {
            0 => FailPlan::OFF,
            1 => FailPlan::nth(number),
            2 => FailPlan::every(number),
            _ => FailPlan::seeded(number, 100),
        };
        let plan = plan.at(match what >> 2 & 7 {
            0 => FailAim::Class(FailClass::Frames),
            1 => FailAim::Class(FailClass::Object),
            2 => FailAim::Site(FailSite::TABLE),
            _ => FailAim::Everything,
        });
        self.say(|| format!("{plan:?}"));
        self.small.fail_points().set(plan);
    }

    fn limit(&mut self, bytes: &mut Bytes<'_>) {
        let (what, number) = (bytes.byte(), u64::from(bytes.byte()));
        let pages = if number == 255 { u64::MAX } else { number * PAGE_SIZE };
        if what % 6 == 4 {
            let rights = Rights::from_bits_truncate(number as u8);
            let current_space = &mut self.spaces[self.current];
            current_space.space = current_space.space.acting_with(rights);
            return self.say(|| format!("space {}: {rights:?}", self.current));
        }
        let space = &self.current_space().space;
        let old = space.limits();
        let new = match what % 6 {
            0 => Limits { address_space: pages, ..old },
            1 => Limits { data: pages, ..old },
            2 => Limits { stack: pages, ..old },
            3 => Limits { locked: pages, ..old },
            _ => Limits { mappings: if number == 255 { 65530 } else { number }, ..old },
        };
        space.set_limits(new);
        self.say(|| format!("space {}: {new:?}", self.current));
    }

    /// A loader's mapping: any flags that smaps can show.
    fn install(&mut self, bytes: &mut Bytes<'_>) {
        let values = Values::<F>::new(&self.calls.areas);
        let start = values.address(bytes);
        let range = VirtRange::new(VirtAddr(start), VirtAddr(start.wrapping_add(values.length(bytes))));
        let picked = [(); 3].map(|()| bytes.pick(quire_mm::proc::SMAPS_MNEMONICS).0);
        let plain =
            VmFlags::from_bits_truncate(u64::from(bytes.byte())) & (VmFlags::ACCESS | VmFlags::MAY_ACCESS);
        let flags = picked.into_iter().fold(plain, |all, flag| all | flag);
        let origin = bytes.byte();
        let (page_offset, file) = match origin {
            0..128 => (range.start().0 / PAGE_SIZE, None),
            _ => (u64::from(origin & 15), Some(u64::from(origin >> 4))),
        };
        let mapping = Mapping { range, flags, page_offset, file };
        let result = self.current_space().space.install(&mapping);
        self.say(|| format!("space {}: install {mapping:x?} = {result:?}", self.current));
        if result.is_ok() {
            self.calls.areas.note(start);
        }
    }
}

/// Panics unless the page that came with a write of `count` words at `addr` is zero but for them.
fn assert_rest_is_zero<F: PagingFormat>(
    program: &Program<'_, Space<'_, HostPlatform<F>>, F>,
    addr: VirtAddr,
    count: usize,
) {
    let mut page = [0; PAGE_SIZE as usize];
    let result = program.read(addr.page_start(), &mut page);
    if is_starved(&result) {
        return;
    }
    assert_eq!(result, Ok(()), "the page was just written to");
    let written = addr.page_offset() as usize..addr.page_offset() as usize + 8 * count;
    let rest = page.iter().enumerate().find(|&(at, &byte)| byte != 0 && !written.contains(&at));
    assert_eq!(rest, None, "a new page at {addr:x?} is not zero");
}

/// Whether an access found no memory. A word that was just written may be swapped out when the last page of
/// the same write takes its frame.
fn is_starved<T>(result: &Result<T, AccessError<FaultError>>) -> bool {
    matches!(result, Err(AccessError::Fault(FaultError::OutOfMemory(_))))
}

/// Whether an access passed. One that faults for ever is wrong: each fault is alone on the machine, so its
/// page stays.
fn passed<T>(result: &Result<T, AccessError<FaultError>>) -> bool {
    if let Err(AccessError::Stuck { addr, access }) = *result {
        panic!("{access:?} of {addr:x?} faults for ever");
    }
    result.is_ok()
}
