//! What the texts say of files.

use crate::common::{small, text, words};
use quire_arch::{PAGE_SIZE, Platform};
use quire_mm::file::{
    DeviceMemory, Direction, FileBacking, FileError, FileIo, IoLimits, Submitted, Transferred, Wait,
};
use quire_mm::proc;
use quire_mm::space::{Advice, MapFlags, MapRequest, MappedFile, Protection};

/// A file that is zeros, is read page by page, and loses what is written.
struct Hole;

impl<P: Platform> FileBacking<P> for Hole {
    unsafe fn submit(&self, _: DeviceMemory<'_, P>, io: &FileIo<'_>) -> Submitted<Transferred, FileError> {
        Submitted::Done(Ok(if io.direction == Direction::Read {
            Transferred::Zeros
        } else {
            Transferred::All
        }))
    }

    fn limits(&self) -> IoLimits {
        IoLimits { readahead: 0, ..IoLimits::default() }
    }
}

#[test]
fn pages_of_files_are_told_in_meminfo() {
    let machine = small(1);
    let told = || {
        let meminfo = text(&machine, proc::meminfo);
        let figure = |name: &str| {
            let line = meminfo.lines().find(|line| words(line)[0] == name).unwrap();
            words(line)[1].parse::<u64>().unwrap() / 4
        };
        ["Cached:", "Dirty:", "Writeback:", "AnonPages:", "Mapped:"].map(figure)
    };
    let file = machine.memory().create_file(Hole, 8 * PAGE_SIZE).unwrap();
    assert_eq!(told(), [0; 5]);
    let spaces = [(); 2].map(|()| machine.memory().create_space().unwrap());
    let rights = Protection::READ | Protection::WRITE;
    let request = |flags| MapRequest {
        flags,
        file: Some(MappedFile::new(0, 0)),
        ..MapRequest::anonymous(8 * PAGE_SIZE, rights)
    };
    let shared = spaces[0].mmap_file(&request(MapFlags::SHARED), &file).unwrap();
    let private = spaces[1].mmap_file(&request(MapFlags::empty()), &file).unwrap();
    spaces[0].madvise(shared, 5 * PAGE_SIZE, Advice::PopulateWrite).unwrap();
    spaces[1].madvise(private, 2 * PAGE_SIZE, Advice::PopulateWrite).unwrap();
    let [cached, dirty, writeback, anonymous, mapped] = told();
    // The two pages behind the written ones may be mapped, too, as they are cached.
    assert_eq!((cached, dirty, writeback, anonymous), (5, 5, 0, 2));
    assert!(mapped >= 5, "{mapped}");
    file.write_back(0..u64::MAX, Wait::Yes).unwrap();
    spaces[0].munmap(shared, 8 * PAGE_SIZE).unwrap();
    spaces[1].munmap(private, 8 * PAGE_SIZE).unwrap();
    assert_eq!(told(), [5, 0, 0, 0, 0]);
    file.set_size(PAGE_SIZE).unwrap();
    assert_eq!(told(), [1, 0, 0, 0, 0]);
}
