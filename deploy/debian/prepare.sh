#!/bin/sh
# Writes what the Debian package takes beside the program into target/package: completions, manual pages, the changelog in Debian's form.
# `cargo run --release -p xtask -- dist` calls it, with the program as its argument, from the root of the project.
set -eu
program=$1
out=target/package
rm -rf "$out"
mkdir -p "$out/completions" "$out/man/man1"
for shell in bash zsh fish; do
  "$program" completions "$shell" > "$out/completions/headrace.$shell"
done
"$program" man "$out/man/man1" > /dev/null
gzip --best --no-name "$out"/man/man1/*
version=$("$program" --version | sed -n '1s/^headrace //p')
when=$(date --utc --rfc-email --date="@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}")
cat > "$out/changelog" <<END
headrace ($version-1) unstable; urgency=medium

  * What changed stands in /usr/share/doc/headrace/NEWS.md.

 -- The Headrace authors <headrace@users.noreply.github.com>  $when
END
