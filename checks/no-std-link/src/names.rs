//! A file system: directories, a file that is written, moved, linked and mapped, what a full one refuses.

use crate::machine::Toy;
use quire_mm::Memory;
use quire_mm::file::{DeviceMemory, Direction, File, FileBacking, FileError, FileIo, Submitted, Transferred};
use quire_mm::frame::KernelHeap;
use quire_mm::platform::{PAGE_SIZE, Platform};
use quire_mm::space::{MapFlags, MapRequest, Protection};
use quire_tmpfs::{
    Account, Backend, Error, FIRST, FileData, Limits, New, Options, Owner, RenameOptions, Seek, Time, Tmpfs,
    Walk,
};

/// Bytes that are nowhere but in the page cache.
struct InCache(#[allow(dead_code, reason = "it goes with the bytes")] Account);

impl<P: Platform> FileBacking<P> for InCache {
    unsafe fn submit(&self, _: DeviceMemory<'_, P>, io: &FileIo<'_>) -> Submitted<Transferred, FileError> {
        Submitted::Done(Ok(match io.direction {
            Direction::Read => Transferred::Zeros,
            Direction::Write => Transferred::All,
        }))
    }
}

struct Bytes<'m>(File<'m, Toy>);

impl FileData for Bytes<'_> {
    type Program = ();
    type Writing<'f>
        = ()
    where
        Self: 'f;

    fn writing(&self) -> Result<(), Error> {
        // Nothing is executed.
        Ok(())
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn pages(&self) -> u64 {
        self.0.figures().cached
    }

    fn set_size(&self, size: u64) -> Result<(), Error> {
        Ok(self.0.set_size(size)?)
    }

    fn punch(&self, bytes: core::ops::Range<u64>, _: Option<&()>) -> Result<(), Error> {
        Ok(self.0.punch(bytes, |_| Ok(()))?)
    }

    fn allocate(&self, _: core::ops::Range<u64>, _: Option<&()>) -> Result<(), Error> {
        Err(Error::NotSupported)
    }

    fn seek(&self, at: u64, what: Seek) -> Option<u64> {
        Some(if what == Seek::Data { at } else { self.0.size() })
    }
}

struct OnToy<'m>(&'m Memory<Toy>);

impl<'m> Backend for OnToy<'m> {
    type Platform = Toy;
    type Data = Bytes<'m>;

    fn platform(&self) -> &Toy {
        self.0.platform()
    }

    fn now(&self) -> Time {
        Time::default()
    }

    fn create(&self, account: Account) -> Result<Bytes<'m>, Error> {
        Ok(Bytes(self.0.create_file(InCache(account), 0)?))
    }
}

pub(crate) fn run(memory: &Memory<Toy>) {
    let heap = KernelHeap::new(memory.kernel_frames()).expect("a heap");
    let limits = Limits { pages: Some(100), inodes: Some(6) };
    let options = Options { limits, ..Options::default() };
    let fs = Tmpfs::new(&heap, OnToy(memory), &options).expect("a file system");
    let owner = Owner { permissions: 0o755, uid: 0, gid: 0 };
    let root = fs.root();
    let walk = Walk { root: &root, start: &root, may_search: &|_| true };
    walk.create(b"/bin", New::Directory, &owner).expect("mkdir");
    walk.create(b"sbin", New::Symlink(b"bin/"), &owner).expect("symlink");
    let file = walk.open_or_create(b"sbin/program", &owner, true).expect("open");
    file.set_size(2 * PAGE_SIZE).expect("truncate");
    walk.link(&file, b"bin/other").expect("link");
    walk.rename(b"bin/program", b"program", &RenameOptions::default()).expect("rename");
    walk.create(b"fifo", New::Fifo, &owner).expect("mknod");
    assert_eq!(walk.create(b"more", New::Regular, &owner).err(), Some(Error::NoSpace));
    let mut names = 0;
    root.list(FIRST, &mut |_| {
        names += 1;
        true
    })
    .expect("a listing");
    assert_eq!(names, 6);
    let space = memory.create_space().expect("a space");
    let request =
        MapRequest { flags: MapFlags::SHARED, ..MapRequest::anonymous(PAGE_SIZE, Protection::READ) };
    space.mmap_file(&request, &file.data().expect("a file").0).expect("mmap");
    walk.unlink(b"program").expect("unlink");
    walk.unlink(b"bin/other").expect("unlink");
    walk.remove_directory(b"bin").expect("rmdir");
    drop(file);
    // The file lives in its mapping.
    assert_eq!(fs.usage().inodes, 4);
    drop(space);
    assert_eq!(quire_tmpfs::audit(&fs, &mut |finding| panic!("{finding:?}")), fs.usage());
}
