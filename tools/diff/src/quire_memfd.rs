//! The memfds of a program on Quire, and the descriptors that its processes have of them.

use crate::linux::{MOST_DATA, MOST_MEMFD_PAGES, StoreFacts};
use crate::observation::{Memfd as Seen, Observation};
use crate::program::Call;
use crate::program::names::{
    F_ADD_SEALS, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, MOST_MADE, MOST_MEMFDS, O_RDONLY, O_WRONLY,
    SEEK_DATA, memfd_at,
};
use crate::quire_file::{HostFile, Opened, Raw, errno_of, failed, is_fallocate_mode, page_sum};
use quire_arch::PAGE_SIZE;
use quire_host::{HostPlatform, Machine, Program, ProgramSpace};
use quire_mm::abi::{Memfd, OpenFile};
use quire_mm::file::Seals;
use quire_mm::platform::Access;
use quire_mm::space::{Errno, Error, MappedFile, Space, VmFlags};
use std::rc::Rc;

/// There is neither data nor a hole from there on.
const ENXIO: Errno = Errno(6);

/// An open file description: what descriptors share.
#[derive(Debug)]
struct Description<'m> {
    file: HostFile<'m>,
    reads: bool,
    writes: bool,
    /// The permissions of the file, which no call changes.
    mode: u32,
}

/// The descriptors of a process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Descriptors<'m>([Option<Rc<Description<'m>>>; MOST_MEMFDS]);

/// All that a program has made, by the numbers of the files, beside its file.
#[derive(Debug)]
pub(crate) struct Made<'m> {
    machine: &'m Machine,
    file: u64,
    numbers: Vec<u64>,
}

impl<'m> Made<'m> {
    /// None, of a program whose file has this number.
    pub(crate) const fn new(machine: &'m Machine, file: u64) -> Self {
        Self { machine, file, numbers: Vec::new() }
    }

    /// The number of the program's file.
    pub(crate) const fn file(&self) -> u64 {
        self.file
    }

    /// Which one has this number, from 1, or 0.
    pub(crate) fn place(&self, number: u64) -> u32 {
        let found = self.numbers.iter().position(|made| *made == number);
        found.map_or(0, |at| at as u32 + 1)
    }

    fn create(&mut self, [name, flags, ..]: [u64; 6]) -> Result<Option<Description<'m>>, Errno> {
        let name = vec![b'm'; usize::try_from(name).unwrap_or(usize::MAX)];
        let wanted = Memfd::new(&name, flags as u32).map_err(Error::errno)?;
        if wanted.huge_pages.is_some() {
            return Ok(None);
        }
        let file = self.machine.memory().create_shmem((), 0).map_err(errno_of)?;
        file.add_seals(wanted.seals).map_err(Error::errno)?;
        assert!(self.numbers.len() < MOST_MADE as usize, "Linux made no more");
        self.numbers.push(file.number());
        Ok(Some(Description { file, reads: true, writes: true, mode: wanted.mode }))
    }
}

impl<'m> Descriptors<'m> {
    fn get(&self, descriptor: u64) -> Option<&Description<'m>> {
        self.0[memfd_at(descriptor)?].as_deref()
    }

    /// What the descriptor allows, if it is one of a memfd.
    pub(crate) fn described(&self, descriptor: u32, facts: StoreFacts) -> Option<OpenFile> {
        let Description { reads, writes, .. } = *self.get(descriptor.into())?;
        Some(OpenFile {
            id: 0,
            readable: reads,
            writable: writes,
            refused: None,
            write_refused: None,
            exec_refused: facts.no_exec.then_some(Errno::EPERM),
            max_bytes: MappedFile::REGULAR_BYTES,
            huge_alignment: facts.huge_alignment,
            vm_flags: VmFlags::empty(),
        })
    }

    /// The opening that the descriptor is.
    pub(crate) fn opening(&self, descriptor: u32) -> Option<&HostFile<'m>> {
        Some(&self.get(descriptor.into())?.file)
    }

    /// Whether a call is about memfds, by the descriptor that it names.
    pub(crate) fn are_meant(call: Call, args: [u64; 6]) -> bool {
        use Call::{
            Close, Dup2, Fallocate, Fcntl, Fsync, Ftruncate, Lseek, MemfdCreate, Pread, Pwrite, Reopen,
        };
        match call {
            MemfdCreate | Reopen | Dup2 | Close | Lseek => true,
            Pread | Pwrite | Ftruncate | Fallocate | Fsync | Fcntl => memfd_at(args[0]).is_some(),
            _ => false,
        }
    }

    /// Makes such a call.
    pub(crate) fn make<S: ProgramSpace>(
        &mut self,
        call: Call,
        args: [u64; 6],
        made: &mut Made<'m>,
        caller: (&Program<'_, S>, &Space<'_, HostPlatform>),
    ) -> Raw {
        let result = match call {
            Call::MemfdCreate => made.create(args).map(|description| {
                if let (Some(description), Some(at)) = (description, memfd_at(args[2])) {
                    self.0[at] = Some(Rc::new(description));
                }
                0
            }),
            Call::Reopen => self.reopen(args),
            Call::Dup2 => self.duplicate(args),
            Call::Close => {
                let closed = memfd_at(args[0]).and_then(|at| self.0[at].take());
                closed.map(|_| 0).ok_or(Errno::EBADF)
            }
            Call::Pwrite => self.write(args, caller),
            _ => self.call_open(call, args, caller),
        };
        result.unwrap_or_else(failed)
    }

    fn reopen(&mut self, [of, descriptor, access, ..]: [u64; 6]) -> Result<Raw, Errno> {
        // There is no such name in /proc.
        let Description { file, mode, .. } = self.get(of).ok_or(Errno::ENOENT)?;
        let (reads, writes) = (access != O_WRONLY, access != O_RDONLY);
        let file = file.open(Access::Write).map_err(errno_of)?;
        let description = Description { file, reads, writes, mode: *mode };
        if let Some(at) = memfd_at(descriptor) {
            self.0[at] = Some(Rc::new(description));
        }
        Ok(0)
    }

    fn duplicate(&mut self, [of, descriptor, ..]: [u64; 6]) -> Result<Raw, Errno> {
        let (Some(from), Some(to)) = (memfd_at(of), memfd_at(descriptor)) else { return Err(Errno::EBADF) };
        let description = self.0[from].clone().ok_or(Errno::EBADF)?;
        self.0[to] = Some(description);
        Ok(i64::from(descriptor as u32))
    }

    /// `pwrite`.
    fn write<S: ProgramSpace>(
        &self,
        args @ [descriptor, .., offset, _, _]: [u64; 6],
        caller: (&Program<'_, S>, &Space<'_, HostPlatform>),
    ) -> Result<Raw, Errno> {
        (offset.cast_signed() >= 0).then_some(()).ok_or(Errno::EINVAL)?;
        let Description { file, reads, writes, .. } = self.get(descriptor).ok_or(Errno::EBADF)?;
        writes.then_some(()).ok_or(Errno::EBADF)?;
        Opened { file, reads: *reads, writes: *writes }.write(args, caller)
    }

    /// A call about what is open.
    fn call_open<S: ProgramSpace>(
        &self,
        call: Call,
        args: [u64; 6],
        caller: (&Program<'_, S>, &Space<'_, HostPlatform>),
    ) -> Result<Raw, Errno> {
        let [descriptor, second, third, fourth, ..] = args;
        let negative = match call {
            Call::Pread => fourth.cast_signed() < 0,
            Call::Ftruncate => second.cast_signed() < 0,
            _ => false,
        };
        (!negative).then_some(()).ok_or(Errno::EINVAL)?;
        let description = self.get(descriptor).ok_or(Errno::EBADF)?;
        let Description { file, reads, writes, .. } = description;
        let opened = Opened { file, reads: *reads, writes: *writes };
        match call {
            Call::Pread => opened.read(args, caller),
            Call::Ftruncate => {
                writes.then_some(()).ok_or(Errno::EINVAL)?;
                file.set_size(second).map(|()| 0).map_err(errno_of)
            }
            Call::Fallocate => description.fallocate(second, (third, fourth), caller.1),
            Call::Fsync => Ok(0),
            Call::Fcntl => description.control(second, third),
            Call::Lseek => {
                let found = if third as u32 == SEEK_DATA as u32 {
                    file.seek_data(second)
                } else {
                    file.seek_hole(second)
                };
                found.map(u64::cast_signed).ok_or(ENXIO)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Notes what is behind each descriptor.
    pub(crate) fn sum_up(&self, seen: &mut Observation) {
        for (description, seen) in self.0.iter().zip(&mut seen.memfds) {
            *seen = description.as_ref().map(|description| description.seen());
        }
    }
}

impl Description<'_> {
    fn fallocate(
        &self,
        mode: u64,
        (offset, len): (u64, u64),
        space: &Space<'_, HostPlatform>,
    ) -> Result<Raw, Errno> {
        const ALLOCATE: u32 = 0;
        const KEEP: u32 = FALLOC_FL_KEEP_SIZE as u32;
        const PUNCH: u32 = FALLOC_FL_KEEP_SIZE as u32 | FALLOC_FL_PUNCH_HOLE as u32;
        if offset.cast_signed() < 0 || len.cast_signed() <= 0 {
            return Err(Errno::EINVAL);
        }
        // An `int`.
        let mode = mode as u32;
        if !is_fallocate_mode(mode.into()) {
            return Err(Errno::EOPNOTSUPP);
        }
        self.writes.then_some(()).ok_or(Errno::EBADF)?;
        let end = offset.checked_add(len).filter(|end| end.cast_signed() >= 0).ok_or(Errno::EFBIG)?;
        let done = match mode {
            ALLOCATE | KEEP => space.files().allocate(&self.file, offset..end, mode == KEEP),
            PUNCH => space.files().punch(&self.file, offset..end, |_| Ok(())),
            _ => return Err(Errno::EOPNOTSUPP),
        };
        done.map(|()| 0).map_err(errno_of)
    }

    /// `fcntl` about seals.
    fn control(&self, command: u64, word: u64) -> Result<Raw, Errno> {
        if command as u32 != F_ADD_SEALS as u32 {
            return Ok(self.seals());
        }
        self.writes.then_some(()).ok_or(Errno::EPERM)?;
        let mut seals = Seals::from_bits(word as u32).ok_or(Errno::EINVAL)?;
        if seals.contains(Seals::EXEC) && self.mode & 0o111 != 0 {
            seals |= Seals::OF_EXECUTABLE;
        }
        self.file.add_seals(seals).map(|()| 0).map_err(Error::errno)
    }

    fn seals(&self) -> Raw {
        self.file.seals().map_or(failed(Errno::EINVAL), |seals| seals.bits().into())
    }

    fn seen(&self) -> Seen {
        let Self { file, reads, .. } = self;
        let figures = file.figures();
        let mut seen = Seen {
            seals: self.seals(),
            size: file.size(),
            allocated: (figures.cached + figures.swapped) * PAGE_SIZE,
            ..Seen::default()
        };
        let mut from = 0;
        while seen.data.len() < MOST_DATA
            && let Some(start) = file.seek_data(from)
        {
            let end = file.seek_hole(start).unwrap_or(start);
            seen.data.push((start, end));
            let pages = (start & !(PAGE_SIZE - 1)..end).step_by(PAGE_SIZE as usize).filter(|_| *reads);
            let left = MOST_MEMFD_PAGES - seen.sums.len();
            seen.sums.extend(pages.take(left).map(|page| (page, page_sum(file, page))));
            from = end;
        }
        seen
    }
}
