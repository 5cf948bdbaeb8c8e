//! Embeds the page at `/` and its files, so that the binary serves it alone and offline.

use std::{
    env,
    ffi::OsStr,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
};

const FILES: [&str; 6] = [
    "start.js",
    "style.css",
    "node_modules/graphiql/graphiql.min.css",
    "node_modules/graphiql/graphiql.min.js",
    "node_modules/react/umd/react.production.min.js",
    "node_modules/react-dom/umd/react-dom.production.min.js",
];

fn main() -> io::Result<()> {
    let web = folder("CARGO_MANIFEST_DIR").join("web");
    let files = FILES.map(|file| web.join(file));
    let embedded = files.iter().all(|file| file.is_file());
    let assets =
        if embedded { files.iter().map(|file| asset(file)).collect::<io::Result<String>>()? } else { String::new() };

    // A watched path that does not exist would run this script at every build. So the files are watched where they are
    // all there, and otherwise the folder in which they will appear.
    let watched = if embedded { &files[..] } else { &[web] };
    for path in watched {
        println!("cargo:rerun-if-changed={}", path.display());
    }

    let table = format!(
        "/// Whether the page's files were there at the build.\n\
         pub(crate) const GRAPHIQL_EMBEDDED: bool = {embedded};\n\
         static ASSETS: &[Asset] = &[{assets}];\n"
    );
    fs::write(folder("OUT_DIR").join("assets.rs"), table)
}

fn folder(variable: &str) -> PathBuf {
    env::var_os(variable).expect("cargo sets it for a build script").into()
}

/// The file's row in the table of assets.
fn asset(file: &Path) -> io::Result<String> {
    let name = file.file_name().and_then(OsStr::to_str).expect("each file of the list has a name");
    let kind = if file.extension() == Some(OsStr::new("css")) { "css" } else { "javascript" };
    let mut hasher = DefaultHasher::new();
    fs::read(file)?.hash(&mut hasher);
    let etag = format!("\"{:016x}\"", hasher.finish());
    let source = file.display().to_string();
    Ok(format!(
        "Asset {{ name: {name:?}, content_type: \"text/{kind}; charset=utf-8\", etag: {etag:?}, \
         bytes: include_bytes!({source:?}) }},"
    ))
}
