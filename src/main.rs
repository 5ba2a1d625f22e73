//! The command line `wgfc`; see `wgfc --help`.

fn main() {
    quieten_drivers();
    wgfc::cli::main(std::env::args_os());
}

/// Mesa's layer that asks the desktop for its graphics card, on each start of Vulkan, complains on stderr where
/// there is no desktop to ask.
fn quieten_drivers() {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
