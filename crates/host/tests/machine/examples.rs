//! The examples: what they print is what the files beside them say.

#[path = "../../examples/embed.rs"]
mod embed;
#[path = "../../examples/file.rs"]
mod file;
#[path = "../../examples/frames.rs"]
mod frames;
#[path = "../../examples/pressure.rs"]
mod pressure;

#[test]
fn a_machine_is_embedded_in_a_process() {
    assert_eq!(embed::run().unwrap(), include_str!("../../examples/embed.txt"));
}

#[test]
fn a_file_of_the_embedders_own_is_mapped() {
    assert_eq!(file::run().unwrap(), include_str!("../../examples/file.txt"));
}

#[test]
fn the_frame_allocator_works_alone() {
    assert_eq!(frames::run().unwrap(), include_str!("../../examples/frames.txt"));
}

#[test]
fn swap_and_memory_groups_stand_pressure() {
    assert_eq!(pressure::run().unwrap(), include_str!("../../examples/pressure.txt"));
}
