//! The README's example: the same lines, compiled and run.

use quire_host::{HostConfig, Machine};
use quire_mm::MemoryConfig;
use quire_mm::space::{MapRequest, Protection};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let machine: Machine = Machine::new(&HostConfig::with_ram(64 << 20), MemoryConfig::default())?;
    let cpu = machine.vcpu(0)?; // this thread is CPU 0 now
    let space = machine.memory().create_space()?;
    let addr = space.mmap(&MapRequest::anonymous(1 << 20, Protection::READ | Protection::WRITE))?;
    cpu.program(&space).write_u64(addr, 42)?; // TLB miss, walk, page fault, walk again
    let child = space.fork()?;
    space.munmap(addr, 1 << 20)?;
    assert_eq!(cpu.program(&child).read_u64(addr)?, 42);
    assert!(machine.audit().is_empty()); // every frame, table, count and TLB entry recounted
    Ok(())
}

#[test]
fn the_example_of_the_readme_runs() {
    main().expect("the README's example");
}

#[test]
fn the_readme_shows_the_lines_that_run_here() {
    let readme = include_str!("../../../../README.md");
    let (_, after) = readme.split_once("```rust\n").expect("the README has an example");
    let (example, _) = after.split_once("```").expect("the example ends");
    assert!(example.contains("fn main()") && example.contains("use quire_mm::"));
    assert!(include_str!("readme.rs").contains(example), "the README's example is not the one that runs");
}
