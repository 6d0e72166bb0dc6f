//! Compiles what stable Rust cannot say: functions with a variable number of arguments.

fn main() {
    let source = "src/net/logger.c";
    println!("cargo::rerun-if-changed={source}");
    cc::Build::new()
        .file(source)
        .std("c11")
        .flag_if_supported("-fvisibility=hidden")
        .warnings(true)
        .extra_warnings(true)
        .compile("ccl_nccl_net_logger");
}
