//! Compiles the headers with the warnings that programs turn on, each as an error, and without exceptions.

use std::process::Command;

use crate::folder;
use crate::skip::skip;

const WARNINGS: [&str; 10] = [
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wconversion",
    "-Wsign-conversion",
    "-Wcast-qual",
    "-Wcast-align",
    "-Wshadow",
    "-Wundef",
    "-Werror",
];

/// Compiles a program that includes a header. Returns false, and skips the test, if there is no compiler.
fn compiles(test: &str, compiler: &str, header: &str, options: &[&str]) -> bool {
    let folder = folder();
    let temporary = tempfile::tempdir().unwrap();
    let source = temporary.path().join(if compiler == "c++" { "program.cpp" } else { "program.c" });
    std::fs::write(&source, format!("#include \"{header}\"\nint main(void) {{ return 0; }}\n")).unwrap();
    let mut command = Command::new(compiler);
    command.args(WARNINGS).args(options).arg("-fsyntax-only").arg("-I").arg(folder.join("include"));
    let Ok(output) = command.arg(&source).output() else {
        skip(test, format!("{compiler} is not installed"));
        return false;
    };
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{header} with {options:?}:\n{told}");
    true
}

#[test]
fn the_headers_compile_with_warnings_as_errors_and_without_exceptions() {
    let name = "the_headers_compile_with_warnings_as_errors_and_without_exceptions";
    for standard in ["-std=c99", "-std=c11"] {
        if !compiles(name, "cc", "ringfile.h", &[standard]) {
            return;
        }
    }
    for standard in ["-std=c++17", "-std=c++20"] {
        for mode in [&["-Wold-style-cast"][..], &["-Wold-style-cast", "-fno-exceptions", "-fno-rtti"]] {
            let options = [&[standard], mode].concat();
            if !compiles(name, "c++", "ringfile.hpp", &options)
                || !compiles(name, "c++", "ringfile.h", &options)
            {
                return;
            }
        }
    }
}
