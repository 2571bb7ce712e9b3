//! The command line: arguments, output, exit codes.

mod cli;
mod lab;
mod output;
mod schema;
