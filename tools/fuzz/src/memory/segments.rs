//! Steps that make, attach, detach and change segments of SysV shared memory.

use super::Play;
use super::values::Values;
use crate::bytes::Bytes;
use quire_arch::{PAGE_SIZE, PagingFormat, VirtAddr};
use quire_mm::shm::{ShmCaller, ShmChange, ShmQuery};
use quire_mm::space::VmFlags;
use std::rc::Rc;

/// IPC_CREAT, IPC_EXCL, SHM_HUGETLB, SHM_NORESERVE, and permissions.
const GET: [u32; 8] = [0o1666, 0o1666, 0o1600, 0o3666, 0o666, 0o5666, 0o11666, 0];
/// SHM_RDONLY, SHM_RND, SHM_REMAP, SHM_EXEC.
const ATTACH: [u32; 8] = [0, 0, 0o10000, 0o20000, 0o60000, 0o40000, 0o100_000, 0o170_000];

/// The numbers of the last segments, the youngest first.
#[derive(Default, Debug)]
pub(super) struct Segments([i32; 4]);

impl Segments {
    fn note(&mut self, id: i32) {
        self.0.rotate_right(1);
        self.0[0] = id;
    }

    /// One of them, or any number.
    fn pick(&self, bytes: &mut Bytes<'_>) -> i32 {
        match bytes.byte() {
            one @ 0..240 => self.0[usize::from(one & 3)],
            _ => bytes.number() as i32,
        }
    }
}

impl<F: PagingFormat> Play<'_, F> {
    /// One such step, chosen by the next byte.
    pub(super) fn segment(&mut self, cpu: usize, bytes: &mut Bytes<'_>) {
        let what = bytes.byte();
        let is_in_group = |group: u32| group & 1 == 0;
        let caller = ShmCaller {
            uid: u32::from(what >> 4 & 1),
            gid: u32::from(what >> 5 & 1),
            is_in_group: &is_in_group,
            pid: self.current as u32,
            now: 0,
            passes_modes: what & 0x40 != 0,
            is_admin: what & 0x80 != 0,
            may_lock: what & 0x80 != 0,
            lock_limit: 8 * PAGE_SIZE,
        };
        let (vcpu, shm) = (&self.vcpus[cpu], Rc::clone(&self.shm));
        match what & 15 {
            0..=3 => {
                let key = if what & 1 == 0 { 0 } else { i32::from(bytes.byte() & 3) };
                let flags = if what & 2 == 0 { bytes.pick(&GET) } else { bytes.number() as u32 };
                let size = Values::<F>::new(&self.calls.areas).length(bytes);
                let result = vcpu.run(|| shm.get(key, size, flags, &caller));
                self.say(|| format!("CPU {cpu}: shmget({key}, {size:#x}, {flags:#o}) = {result:?}"));
                if let Ok(id) = result {
                    self.segments.note(id);
                }
            }
            4..=8 => {
                let id = self.segments.pick(bytes);
                let flags = if what & 1 == 0 { bytes.pick(&ATTACH) } else { bytes.number() as u32 };
                let addr = match bytes.byte() {
                    0..128 => 0,
                    off => Values::<F>::new(&self.calls.areas).address(bytes) + u64::from(off & 7),
                };
                let Some(current_space) = self.spaces.get(self.current) else { return };
                let result =
                    vcpu.run(|| shm.attach(&current_space.space, id, VirtAddr(addr), flags, &caller));
                self.say(|| {
                    format!(
                        "space {}, CPU {cpu}: shmat({id}, {addr:#x}, {flags:#o}) = {result:?}",
                        self.current
                    )
                });
                if let Ok(VirtAddr(start)) = result {
                    assert!(start.is_multiple_of(PAGE_SIZE) && start < F::USER_END.0, "shmat: {start:#x}");
                    self.calls.areas.note(start);
                }
            }
            9..=11 => {
                let addr = VirtAddr(Values::<F>::new(&self.calls.areas).address(bytes));
                let Some(current_space) = self.spaces.get(self.current) else { return };
                let result = vcpu.run(|| shm.detach(&current_space.space, addr, &caller));
                self.say(|| format!("space {}, CPU {cpu}: shmdt({addr:x?}) = {result:?}", self.current));
            }
            12 | 13 => {
                let id = self.segments.pick(bytes);
                let change = match bytes.byte() & 3 {
                    0 => ShmChange::Remove,
                    1 => ShmChange::Lock,
                    2 => ShmChange::Unlock,
                    _ => ShmChange::Owner {
                        uid: bytes.number() as u32,
                        gid: bytes.number() as u32,
                        mode: bytes.number() as u32,
                    },
                };
                let result = vcpu.run(|| shm.change(id, change, &caller));
                self.say(|| format!("CPU {cpu}: shmctl({id}, {change:?}) = {result:?}"));
            }
            14 => {
                let query = match bytes.byte() & 3 {
                    0 => ShmQuery::Place(bytes.number() as u32),
                    1 => ShmQuery::PlaceOfAny(u32::from(bytes.byte() & 7)),
                    _ => ShmQuery::Id(self.segments.pick(bytes)),
                };
                let (result, totals) = vcpu.run(|| (shm.status(query, &caller), shm.totals()));
                self.say(|| format!("CPU {cpu}: {query:?} = {result:?}, {totals:?}"));
                if let Ok(status) = result {
                    assert!(totals.segments > 0, "{status:?} is none of {totals:?}");
                }
                assert!(totals.resident + totals.swapped <= totals.pages, "{totals:?}");
            }
            _ => vcpu.run(|| shm.settle(&caller)),
        }
    }

    /// Whether other spaces may write to what is mapped at `addr`.
    pub(super) fn is_shared(&self, addr: VirtAddr) -> bool {
        let mut is_shared = false;
        let end = VirtAddr(addr.0.saturating_add(1));
        self.current_space().space.mappings().for_each_in(addr, end, |mapping| {
            is_shared |= mapping.flags.contains(VmFlags::SHARED);
        });
        is_shared
    }
}
