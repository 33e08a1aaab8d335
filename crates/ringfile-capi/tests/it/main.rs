//! Compares the binary interface of the shared library with the list in `abi.txt`.
//!
//! The list has a line for everything that a compiled program relies on: the soname, the value of each constant, the
//! type and offset of each field, the size of each struct that may not grow, and the types of each function. A C
//! compiler lays out the structs. Changing or removing a line breaks programs that are already linked; adding one does
//! not. The README says what versions promise, under "Binary compatibility".

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

mod headers;
#[path = "../../../ringfile/tests/it/support/skip.rs"]
#[allow(dead_code, reason = "shared with the tests of the library")]
mod skip;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use skip::skip;

/// Writes the present interface to `abi.txt`, provided that it only adds to it or has another soname.
const WRITE: &str = "RINGFILE_TEST_WRITE_ABI";

#[test]
fn the_binary_interface_is_the_recorded_one() {
    let Some(present) = interface() else { return };
    let path = folder().join("abi.txt");
    let recorded = std::fs::read_to_string(&path).unwrap_or_default();
    let [now, before] = [&present, &recorded].map(|list| list.lines().collect::<BTreeSet<_>>());
    let broken: Vec<_> = before.difference(&now).copied().collect();
    let added: Vec<_> = now.difference(&before).copied().collect();
    let new_name = recorded.lines().next() != present.lines().next();
    let soname = soname();
    assert!(
        broken.is_empty() || new_name,
        "This changes the binary interface of {soname}: programs that are linked with it would break.\n\
         Gone or different:\n  {}\nNew:\n  {}\n\
         Undo the change, or raise the version in Cargo.toml so that the soname changes (before 1.0 the minor \
         version). If no version with this soname was released, delete crates/ringfile-capi/abi.txt. Then run\n  \
         {WRITE}=1 cargo test -p ringfile-capi --test it the_binary\nand commit abi.txt.",
        broken.join("\n  "),
        added.join("\n  ")
    );
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&path, &present).unwrap();
        return;
    }
    assert!(
        added.is_empty(),
        "The binary interface has grown, which is allowed, and abi.txt does not have it yet:\n  {}\n\
         Run\n  {WRITE}=1 cargo test -p ringfile-capi --test it the_binary\nand commit abi.txt.",
        added.join("\n  ")
    );
}

#[test]
fn the_library_exports_the_functions_of_the_header_and_nothing_else() {
    let name = "the_library_exports_the_functions_of_the_header_and_nothing_else";
    // The path of this program: target/PROFILE/deps/it-…. Cargo does not build the shared library for tests.
    let program = std::env::current_exe().unwrap();
    let library = program.ancestors().nth(2).unwrap().join("libringfile.so");
    let changed = |path: &Path| std::fs::metadata(path).and_then(|of| of.modified()).ok();
    let sources = std::fs::read_dir(folder().join("src")).unwrap().map(|entry| entry.unwrap().path());
    if changed(&library) < sources.filter_map(|source| changed(&source)).max() {
        return skip(name, "`cargo build -p ringfile-capi` has not built the library from these sources");
    }
    let Ok(listed) =
        Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(&library).output()
    else {
        skip(name, "nm is not installed");
        return;
    };
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).unwrap();
    let exported: BTreeSet<_> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    let header = Header::read();
    let functions = header.functions.iter().filter(|function| !function.pointer);
    let declared: BTreeSet<_> = functions.map(|function| function.name.as_str()).collect();
    let different: Vec<_> = exported.symmetric_difference(&declared).collect();
    assert!(
        different.is_empty(),
        "only in one of {} and include/ringfile.h: {different:?}",
        library.display()
    );
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the name by which installed programs look for the library. `install` and cargo-c give it the same one.
fn soname() -> String {
    match [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")] {
        ["0", minor] => format!("libringfile.so.0.{minor}"),
        [major, _] => format!("libringfile.so.{major}"),
    }
}

/// Returns the lines of the list; `None` if there is no C compiler.
fn interface() -> Option<String> {
    let header = Header::read();
    let mut program =
        String::from("#include <stdio.h>\n#include <stddef.h>\n#include \"ringfile.h\"\nint main(void) {\n");
    for name in &header.constants {
        writeln!(program, "printf(\"constant {name} %lld\\n\", (long long){name});").unwrap();
    }
    for Struct { name, fields } in &header.structs {
        let grows = fields.first().is_some_and(|field| field.name == "size");
        if !grows {
            writeln!(program, "printf(\"struct {name} %zu bytes\\n\", sizeof(struct {name}));").unwrap();
        }
        for Field { name: field, kind } in fields {
            writeln!(
                program,
                "printf(\"field {name}.{field} {kind} at %zu\\n\", offsetof(struct {name}, {field}));"
            )
            .unwrap();
        }
    }
    program.push_str("return 0;\n}\n");
    let laid_out = compile_and_run(&program)?;
    let functions: String =
        header.functions.iter().map(|function| format!("{}\n", function.line())).collect();
    Some(format!("soname {}\n{laid_out}{functions}", soname()))
}

fn compile_and_run(program: &str) -> Option<String> {
    let scratch = tempfile::tempdir().unwrap();
    let [source, binary] = ["abi.c", "abi"].map(|name| scratch.path().join(name));
    std::fs::write(&source, program).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-std=c11", "-I"]).arg(folder().join("include")).arg(&source).arg("-o").arg(&binary);
    let Ok(compiled) = compiler.output() else {
        skip("the_binary_interface_is_the_recorded_one", "no C compiler is installed");
        return None;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(binary).output().unwrap();
    Some(String::from_utf8(output.stdout).unwrap())
}

/// The declarations in `ringfile.h`. cbindgen has written it, so its form is regular.
struct Header {
    constants: Vec<String>,
    structs: Vec<Struct>,
    functions: Vec<Function>,
}

struct Struct {
    name: String,
    fields: Vec<Field>,
}

struct Field {
    name: String,
    kind: String,
}

/// A function, or the type of a pointer to one.
struct Function {
    name: String,
    returns: String,
    parameters: Vec<String>,
    pointer: bool,
}

impl Function {
    fn line(&self) -> String {
        let word = if self.pointer { "callback" } else { "function" };
        format!("{word} {} {} ({})", self.name, self.returns, self.parameters.join(", "))
    }
}

impl Header {
    fn read() -> Self {
        let path: PathBuf = folder().join("include/ringfile.h");
        let text = std::fs::read_to_string(path).unwrap();
        let declarations = text.split_once("#include <sys/uio.h>").unwrap().1;
        let mut constants = Vec::new();
        let mut code = String::new();
        for line in declarations.lines().map(str::trim) {
            match line.strip_prefix("#define ") {
                // The constants of the version change with every version.
                Some(define) if !define.starts_with("RINGFILE_VERSION_") => {
                    constants.extend(define.split(' ').next().map(str::to_owned));
                }
                Some(_) => {}
                None if line.starts_with(['#', '/']) || line.contains("extern \"C\"") => {}
                None => {
                    code.push_str(line);
                    code.push(' ');
                }
            }
        }
        let mut header = Self { constants, structs: Vec::new(), functions: Vec::new() };
        for statement in statements(&code) {
            header.add(&statement);
        }
        header
    }

    fn add(&mut self, statement: &str) {
        if let Some((head, body)) = statement.split_once('{') {
            let name = head.trim().strip_prefix("typedef struct ").unwrap().to_owned();
            let fields = body.split_once('}').unwrap().0.split(';').filter(|field| !field.trim().is_empty());
            let fields = fields.map(|field| {
                // The length of an array is part of its type.
                let (declared, length) = field.split_at(field.find('[').unwrap_or(field.len()));
                let (kind, name) = split_name(declared).unwrap();
                Field { name, kind: kind + length }
            });
            self.structs.push(Struct { name, fields: fields.collect() });
        } else if let Some(typedef) = statement.strip_prefix("typedef ") {
            // An opaque type is only a name: `typedef struct ringfile_file ringfile_file`.
            if let Some((returns, rest)) = typedef.split_once("(*") {
                let (name, parameters) = rest.split_once(")(").unwrap();
                self.functions.push(function(returns, name, parameters, true));
            }
        } else {
            let (head, parameters) = statement.split_once('(').unwrap();
            let (returns, name) = split_name(head).unwrap();
            self.functions.push(function(&returns, &name, parameters, false));
        }
    }
}

fn function(returns: &str, name: &str, parameters: &str, pointer: bool) -> Function {
    let parameters = parameters.trim_end().strip_suffix(')').unwrap();
    let kinds = parameters.split(',').map(|parameter| match split_name(parameter) {
        Some((kind, _)) => kind,
        None => parameter.trim().to_owned(),
    });
    Function {
        name: name.to_owned(),
        returns: returns.trim().to_owned(),
        parameters: kinds.collect(),
        pointer,
    }
}

/// Splits `const char *path` into its type and its name. `None` for a type without a name: `void`.
fn split_name(declaration: &str) -> Option<(String, String)> {
    let words = declaration.split_whitespace().collect::<Vec<_>>().join(" ");
    let kind = words.trim_end_matches(|letter: char| letter.is_ascii_alphanumeric() || letter == '_');
    let name = &words[kind.len()..];
    (!kind.is_empty() && !name.is_empty()).then(|| (kind.trim_end().to_owned(), name.to_owned()))
}

/// Splits C code at the semicolons that are outside of braces.
fn statements(code: &str) -> Vec<String> {
    let mut depth = 0_i32;
    let mut found = vec![String::new()];
    for letter in code.chars() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if letter == ';' && depth == 0 {
            found.push(String::new());
        } else if let Some(last) = found.last_mut() {
            last.push(letter);
        }
    }
    found
        .into_iter()
        .map(|statement| statement.trim().to_owned())
        .filter(|statement| !statement.is_empty())
        .collect()
}
