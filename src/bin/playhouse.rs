//! The `playhouse` command.

fn main() -> std::process::ExitCode {
    playhouse::cli::main()
}
