//! Link arguments of the program, and of nothing else: RUSTFLAGS would reach this build script too.

fn main() {
    for argument in ["-nostartfiles", "-nodefaultlibs", "-nostdlib", "-static", "-no-pie"] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rerun-if-changed=build.rs");
}
