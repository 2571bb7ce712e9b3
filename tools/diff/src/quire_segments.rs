//! The segments of SysV shared memory of a program on Quire.

use crate::linux::Start;
use crate::observation::{Observation, Segment};
use crate::program::names::{
    CAP_IPC_OWNER, IPC_RMID, IPC_SET, IPC_STAT, MOST_SEGMENTS, NO_OWNER, SHM_INFO, SHM_LOCK, SHM_STAT,
    SHM_STAT_ANY, SHM_UNLOCK,
};
use crate::program::{Call, MOST_PROCESSES};
use crate::quire_file::{Raw, failed};
use quire_arch::VirtAddr;
use quire_host::{HostPlatform, Machine};
use quire_mm::shm::{ShmCaller, ShmChange, ShmNamespace, ShmQuery};
use quire_mm::space::{Errno, Error, Rights, Space};

/// The time of all calls.
const NOW: i64 = 1;

type Namespace<'m> = ShmNamespace<'m, HostPlatform>;

/// The name space of a program, made when it is first used, and what its processes may do in it.
#[derive(Debug)]
pub(crate) struct Segments<'m> {
    machine: &'m Machine,
    start: &'m Start,
    namespace: Option<Namespace<'m>>,
    /// Which processes permissions do not matter to.
    pass: [bool; MOST_PROCESSES as usize],
}

impl<'m> Segments<'m> {
    pub(crate) fn new(machine: &'m Machine, start: &'m Start) -> Self {
        Self { machine, start, namespace: None, pass: [start.passes_modes; MOST_PROCESSES as usize] }
    }

    /// A process keeps only these capabilities.
    pub(crate) fn set_privileges(&mut self, process: u32, kept: u64) {
        self.pass[process as usize] = kept & CAP_IPC_OWNER != 0 && self.start.passes_modes;
    }

    /// `child` has what `process` has.
    pub(crate) fn inherit(&mut self, process: u32, child: u32) {
        self.pass[child as usize] = self.pass[process as usize];
    }

    /// Makes a call.
    pub(crate) fn make(
        &mut self,
        (process, space): (u32, &Space<'m, HostPlatform>),
        call: Call,
        args: [u64; 6],
    ) -> Raw {
        if self.namespace.is_none() {
            match self.machine.memory().create_shm() {
                Ok(namespace) => self.namespace = Some(namespace),
                Err(error) => return failed(error.errno()),
            }
        }
        let Some(namespace) = &self.namespace else { return failed(Errno::ENOMEM) };
        let caller = self.caller(process, space);
        let [first, second, third, ..] = args;
        let result = match call {
            Call::Shmget => namespace.get(first as i32, second, third as u32, &caller).map(Raw::from),
            Call::Shmat => {
                let addr = namespace.attach(space, first as i32, VirtAddr(second), third as u32, &caller);
                addr.map(|addr| addr.0.cast_signed())
            }
            Call::Shmdt => namespace.detach(space, VirtAddr(first), &caller).map(|()| 0),
            _ => self.control(namespace, (first as i32, second, third), &caller),
        };
        result.unwrap_or_else(|error| failed(error.errno()))
    }

    fn caller(&self, process: u32, space: &Space<'m, HostPlatform>) -> ShmCaller<'static> {
        let (uid, gid) = self.start.owner;
        ShmCaller {
            uid,
            gid,
            // All segments are of one user and group.
            is_in_group: &|_| true,
            pid: process,
            now: NOW,
            passes_modes: self.pass[process as usize],
            is_admin: true,
            may_lock: space.rights().contains(Rights::LOCK),
            lock_limit: space.limits().locked,
        }
    }

    fn control(
        &self,
        namespace: &Namespace<'m>,
        (id, command, mode): (i32, u64, u64),
        caller: &ShmCaller<'_>,
    ) -> Result<Raw, Error> {
        let (uid, gid) = self.start.owner;
        if id < 0 {
            return Err(Error::NoSegment);
        }
        let change = |change| namespace.change(id, change, caller).map(|()| 0);
        let place = |query: fn(u32) -> ShmQuery| {
            let at = u32::try_from(id).map_err(|_| Error::NoSegment)?;
            namespace.status(query(at), caller).map(|status| Raw::from(status.id))
        };
        match u64::from(command as u32) {
            IPC_RMID => change(ShmChange::Remove),
            IPC_SET => {
                let uid = if mode & NO_OWNER != 0 { u32::MAX } else { uid };
                change(ShmChange::Owner { uid, gid, mode: mode as u32 & 0xffff })
            }
            IPC_STAT => namespace.status(ShmQuery::Id(id), caller).map(|_| 0),
            SHM_LOCK => change(ShmChange::Lock),
            SHM_UNLOCK => change(ShmChange::Unlock),
            SHM_STAT => place(ShmQuery::Place),
            SHM_STAT_ANY => place(ShmQuery::PlaceOfAny),
            SHM_INFO => Ok(namespace.totals().highest.into()),
            _ => Err(Error::BadFlags),
        }
    }

    /// Notes what an exit has detached.
    pub(crate) fn settle(&self) {
        if let Some(namespace) = &self.namespace {
            namespace.settle(&ShmCaller {
                uid: 0,
                gid: 0,
                is_in_group: &|_| true,
                pid: 0,
                now: NOW,
                passes_modes: true,
                is_admin: true,
                may_lock: true,
                lock_limit: 0,
            });
        }
    }

    /// Lists the segments that there are.
    pub(crate) fn list(&self, space: &Space<'m, HostPlatform>, seen: &mut Observation) {
        let Some(namespace) = &self.namespace else { return };
        let caller = self.caller(0, space);
        let status = |at| namespace.status(ShmQuery::PlaceOfAny(at), &caller).ok();
        seen.segments.extend((0..MOST_SEGMENTS).filter_map(status).map(|status| Segment {
            id: status.id.into(),
            key: status.key.into(),
            mode: status.mode.into(),
            creator: status.creator_pid.into(),
            size: status.size.cast_signed(),
            attachments: status.attachments.cast_signed(),
            was_attached: status.attached_at != 0,
        }));
    }
}
