//! Programs that map files on a disk, and change them.

use crate::shared::{FILE_AREA, FILE_PAGES, MANY_FILES, NOT_PERMITTED};
use crate::{PAGE, READ_WRITE, end, execute, handle, leave, make_process, wait_for};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

/// So many allocations of `allocates_while_descriptors_change` see a change.
const CHANGES: usize = 100;

/// A mapping of a file, of which more may be mapped than the file has.
struct Area(*mut u8);

impl Area {
    fn of(file: &File) -> Self {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let addr = unsafe {
            libc::mmap(ptr::null_mut(), FILE_AREA * PAGE, READ_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(addr, libc::MAP_FAILED);
        Self(addr.cast())
    }

    /// Reads a page, or gets a signal for which its process ends.
    fn read(&self, page: usize) {
        // SAFETY: the mapping lives to the end of the program.
        unsafe { self.0.add(page * PAGE).read_volatile() };
    }

    /// The same by the kernel, to which a page that is not there is an error.
    fn can_be_read(&self, page: usize) -> bool {
        let null = File::options().write(true).open("/proc/self/comm").unwrap();
        // SAFETY: the kernel reads a byte of the mapping, or refuses to.
        unsafe { libc::write(null.as_raw_fd(), self.0.add(page * PAGE).cast(), 1) == 1 }
    }

    /// Asks what of it is in memory, which the recording has.
    fn ask(&self) {
        self.ask_pages(FILE_AREA);
    }

    /// The same of what the file has: Linux can have pages of a folio past its end.
    fn ask_up_to_the_end(&self, file: &File) {
        self.ask_pages(file.metadata().unwrap().len() as usize / PAGE);
    }

    fn ask_pages(&self, pages: usize) {
        let mut there = [0_u8; FILE_AREA];
        // SAFETY: the kernel writes a byte for each of these pages of the mapping.
        assert_eq!(unsafe { libc::mincore(self.0.cast(), pages * PAGE, there.as_mut_ptr()) }, 0);
    }
}

/// Makes a file of pages, of which none is in the page cache.
fn make(path: &Path) -> File {
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    file.write_all(&vec![1; FILE_PAGES * PAGE]).unwrap();
    file.sync_all().unwrap();
    // SAFETY: it has no preconditions; the second asks for no pages ahead.
    unsafe {
        assert_eq!(libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED), 0);
        assert_eq!(libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM), 0);
    }
    file
}

fn read_page(mut file: &File, page: usize) {
    file.seek(SeekFrom::Start((page * PAGE) as u64)).unwrap();
    file.read_exact(&mut [0]).unwrap();
}

fn append(mut file: &File, pages: usize) {
    file.seek(SeekFrom::End(0)).unwrap();
    for _ in 0..pages {
        file.write_all(&[1; PAGE]).unwrap();
    }
}

/// A file that is mapped gets shorter and longer in each way, and pages of it come and go.
pub(crate) fn changes_a_mapped_file() {
    handle(libc::SIGBUS, libc::SIG_DFL);
    let place = tempfile::Builder::new().prefix("quire-mapped-file-").tempdir().unwrap();
    let path = place.path().join("changes");
    let file = make(&path);
    read_page(&file, 5);
    let area = Area::of(&file);
    area.ask();
    area.read(5);
    area.read(20);
    assert!(!area.can_be_read(FILE_PAGES));
    area.ask();
    let resize = |pages: usize| file.set_len((pages * PAGE) as u64).unwrap();
    resize(10);
    assert!(area.can_be_read(9) && !area.can_be_read(10));
    area.ask();
    append(&file, 6);
    area.ask();
    assert!(area.can_be_read(15) && !area.can_be_read(16));
    resize(100);
    area.read(90);
    area.ask();
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let [start, bytes] = [2 * PAGE as i64, 4 * PAGE as i64];
    // SAFETY: it has no preconditions.
    assert_eq!(unsafe { libc::fallocate(file.as_raw_fd(), punch, start, bytes) }, 0);
    area.ask();
    area.read(3);
    area.ask();
    let emptied = File::create(&path).unwrap();
    assert!(!area.can_be_read(0));
    area.ask();
    // SAFETY: it has no preconditions.
    assert_eq!(unsafe { libc::fallocate(emptied.as_raw_fd(), 0, 0, 7 * PAGE as i64) }, 0);
    area.read(6);
    area.ask();
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the name is a live string.
    assert_eq!(unsafe { libc::truncate(name.as_ptr(), 2 * PAGE as i64) }, 0);
    assert!(area.can_be_read(1) && !area.can_be_read(2));
    area.ask();
    // By another descriptor, another process, and a name that is not from the root.
    std::env::set_current_dir(place.path()).unwrap();
    assert!(std::process::Command::new("truncate").args(["-s", "8K", "changes"]).status().unwrap().success());
    append(&file, 2);
    assert!(area.can_be_read(3));
    area.ask();
    drop(place);
    leave(0);
}

/// Parts of a file that is mapped are cut out, while its pages are dirty and may be those of one large folio.
/// Ends with `NOT_PERMITTED` where its file system moves no bytes.
pub(crate) fn cuts_a_mapped_file() {
    let place = tempfile::Builder::new().prefix("quire-mapped-file-").tempdir().unwrap();
    let mut file = make(&place.path().join("cut"));
    let area = Area::of(&file);
    file.set_len(0).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&[1; 16 * PAGE]).unwrap();
    area.ask_up_to_the_end(&file);
    let cut = |mode: i32, start: usize, pages: usize| {
        let [start, bytes] = [start, pages].map(|pages| (pages * PAGE) as i64);
        // SAFETY: it has no preconditions.
        let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, start, bytes) } == 0;
        area.ask_up_to_the_end(&file);
        done
    };
    assert!(cut(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 3, 4));
    for pages in [3, 12, 16] {
        file.set_len((pages * PAGE) as u64).unwrap();
        area.ask_up_to_the_end(&file);
    }
    let moved = cut(libc::FALLOC_FL_COLLAPSE_RANGE, 4, 4) && cut(libc::FALLOC_FL_INSERT_RANGE, 2, 4);
    drop(place);
    leave(if moved { 0 } else { NOT_PERMITTED });
}

/// A file that is mapped is opened in a way that does not empty it, and emptied by a name that is the
/// process's own.
pub(crate) fn empties_a_mapped_file() {
    let place = tempfile::Builder::new().prefix("quire-mapped-file-").tempdir().unwrap();
    let path = place.path().join("emptied");
    let file = make(&path);
    let area = Area::of(&file);
    area.read(5);
    let flags = libc::O_PATH | libc::O_TRUNC;
    drop(OpenOptions::new().read(true).custom_flags(flags).open(&path).unwrap());
    assert!(area.can_be_read(20));
    area.ask();
    drop(File::create(format!("/dev/fd/{}", file.as_raw_fd())).unwrap());
    assert!(!area.can_be_read(0));
    area.ask();
    drop(place);
    leave(0);
}

/// Allocates again and again what a mapped file has already, while another thread puts another file behind
/// the descriptor, and the mapped one again.
pub(crate) fn allocates_while_descriptors_change() {
    let place = tempfile::Builder::new().prefix("quire-mapped-file-").tempdir().unwrap();
    let file = make(&place.path().join("mapped"));
    let area = Area::of(&file);
    let other = File::create(place.path().join("other")).unwrap();
    other.set_len(3 * PAGE as u64).unwrap();
    let changing = file.try_clone().unwrap();
    let (rounds, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                for next in [&other, &file] {
                    // SAFETY: the new descriptor is of a file that lives as long.
                    unsafe { libc::dup2(next.as_raw_fd(), changing.as_raw_fd()) };
                    rounds.fetch_add(1, SeqCst);
                }
            }
        });
        let mut changes = 0;
        while changes < CHANGES {
            let before = rounds.load(SeqCst);
            let mode = libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: it has no preconditions.
            assert_eq!(unsafe { libc::fallocate(changing.as_raw_fd(), mode, 0, PAGE as i64) }, 0);
            changes += usize::from(rounds.load(SeqCst) > before);
        }
        is_over.store(true, SeqCst);
    });
    area.ask();
    drop(place);
    leave(0);
}

/// Maps a file that nothing else has mapped, and reads all of it. All of it is dirty before.
pub(crate) fn reads_a_file() {
    let place = tempfile::Builder::new().prefix("quire-mapped-file-").tempdir().unwrap();
    let mut file = make(&place.path().join("read"));
    file.seek(SeekFrom::Start(0)).unwrap();
    file.write_all(&[2; FILE_PAGES * PAGE]).unwrap();
    let area = Area::of(&file);
    (0..FILE_PAGES).for_each(|page| area.read(page));
    area.ask();
    drop(place);
    leave(0);
}

/// Maps many files, of which nothing is in the page cache, and reads a page of each.
pub(crate) fn reads_many_files() {
    let place = tempfile::Builder::new().prefix("quire-mapped-file-").tempdir().unwrap();
    for number in 0..MANY_FILES {
        let file = make(&place.path().join(number.to_string()));
        let area = Area::of(&file);
        area.read(number % FILE_PAGES);
        area.ask();
    }
    drop(place);
    leave(0);
}

/// Executes a FIFO, which Linux refuses at once, while another process looks whether anything opens it to
/// read.
pub(crate) fn executes_a_fifo() {
    let place = tempfile::tempdir().unwrap();
    let name = CString::new(place.path().join("fifo").to_str().unwrap()).unwrap();
    // SAFETY: the name is a live string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o700) }, 0);
    let (mut begun, begins) = std::io::pipe().unwrap();
    let looks = make_process(|| {
        drop((&begins).write_all(&[1]));
        loop {
            // SAFETY: as above.
            let opened = unsafe { libc::open(name.as_ptr(), libc::O_WRONLY | libc::O_NONBLOCK) };
            if opened >= 0 {
                // Told before what reads goes on.
                drop((&begins).write_all(&[2]));
                // SAFETY: it was opened just now.
                unsafe { libc::close(opened) };
                end(0);
            }
        }
    });
    begun.read_exact(&mut [0]).unwrap();
    execute(&[&name]);
    // SAFETY: signals a child that was not waited for.
    unsafe { libc::kill(looks, libc::SIGKILL) };
    drop(begins);
    let mut told = Vec::new();
    begun.read_to_end(&mut told).unwrap();
    wait_for(looks);
    drop(place);
    leave(i32::from(!told.is_empty()));
}
