//! Tells the crate how far it is optimised.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(optimised)");
    if std::env::var("OPT_LEVEL").is_ok_and(|level| level == "3") {
        println!("cargo::rustc-cfg=optimised");
    }
}
