//! A file of the embedder's own: mapped by two programs, written through one mapping, read back from where it is kept,
//! and truncated under both.
//!
//! `cargo run -p quire-host --example file`

use quire_host::{HostConfig, Machine};
use quire_mm::MemoryConfig;
use quire_mm::file::{DeviceMemory, Direction, FileBacking, FileError, FileIo, Submitted, Transferred};
use quire_mm::platform::{PAGE_SIZE, Platform};
use quire_mm::space::{MapFlags, MapRequest, Protection};
use std::error::Error;
use std::sync::{Arc, Mutex};

/// Where the file's bytes are when they are not in the machine's RAM.
struct Bytes(Arc<Mutex<Vec<u8>>>);

impl<P: Platform> FileBacking<P> for Bytes {
    unsafe fn submit(
        &self,
        memory: DeviceMemory<'_, P>,
        io: &FileIo<'_>,
    ) -> Submitted<Transferred, FileError> {
        let Ok(mut bytes) = self.0.lock() else { return Submitted::Done(Err(FileError::Io)) };
        let mut at = io.offset as usize;
        for frames in io.frames {
            let ram = memory.platform().direct_map(frames.start()).as_ptr();
            let end = (at + (frames.len() * PAGE_SIZE) as usize).min(bytes.len());
            // SAFETY: the frames are this file's until it returns; programs may write to them meanwhile, as to what a
            // device reads by DMA: such a page is written again.
            unsafe {
                match io.direction {
                    Direction::Read => ram.copy_from(bytes[at..end].as_ptr(), end - at),
                    Direction::Write => ram.copy_to(bytes[at..end].as_mut_ptr(), end - at),
                }
            }
            at = end;
        }
        Submitted::Done(Ok(Transferred::Bytes(at as u64 - io.offset)))
    }
}

/// What the example prints.
pub(crate) fn run() -> Result<String, Box<dyn Error>> {
    let machine: Machine = Machine::new(&HostConfig::with_ram(64 << 20).paranoid(), MemoryConfig::default())?;
    let memory = machine.memory();
    let cpu = machine.vcpu(0)?;
    let mut out = String::new();

    let kept = Arc::new(Mutex::new(vec![7; 4 * PAGE_SIZE as usize]));
    let file = memory.create_file(Bytes(kept.clone()), 4 * PAGE_SIZE)?;
    let (writer, reader) = (memory.create_space()?, memory.create_space()?);
    let shared = MapRequest {
        flags: MapFlags::SHARED,
        ..MapRequest::anonymous(4 * PAGE_SIZE, Protection::READ | Protection::WRITE)
    };
    let (ours, theirs) = (writer.mmap_file(&shared, &file)?, reader.mmap_file(&shared, &file)?);

    cpu.program(&writer).write_u64(ours, 42)?;
    out += &format!("one writes 42, the other reads {}\n", cpu.program(&reader).read_u64(theirs)?);
    out +=
        &format!("{} page is dirty; what is kept begins with {}\n", file.figures().dirty, first_of(&kept)?);
    file.sync(0..u64::MAX, false)?;
    out += &format!(
        "after a sync {} are; what is kept begins with {}\n",
        file.figures().dirty,
        first_of(&kept)?
    );

    file.set_size(PAGE_SIZE)?;
    let second = theirs.checked_add(PAGE_SIZE).ok_or("overflow")?;
    let refused = cpu.program(&reader).read_u64(second);
    out += &format!("past the new end: {}\n", refused.err().ok_or("it was not refused")?);

    drop((writer, reader, file));
    out += &format!("holders of the file left: {}; ", Arc::strong_count(&kept) - 1);
    out += &format!("the audit finds {}\n", machine.audit().len());
    Ok(out)
}

fn first_of(kept: &Mutex<Vec<u8>>) -> Result<u8, Box<dyn Error>> {
    let bytes = kept.lock().map_err(|_| "a thread panicked")?;
    Ok(bytes[0])
}

#[allow(dead_code, reason = "a test includes this file and has a main of its own")]
fn main() -> Result<(), Box<dyn Error>> {
    print!("{}", run()?);
    Ok(())
}
