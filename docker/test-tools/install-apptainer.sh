#!/usr/bin/env bash
# Apptainer for the tests, on a Debian that does not offer it: docker/test-tools/install-apptainer.sh FOLDER
#
# Debian has Apptainer in sid, built against a newer libc than that of the releases. So that nothing of the system
# is replaced, apptainer and the libc it wants are unpacked into FOLDER, and its programs are told to look there.
# Needs root once (apt-get install); where a package `apptainer` can be installed, or is, that one is linked.
set -euo pipefail

(($# == 1)) && [[ $1 == /* ]] || { echo "usage: install-apptainer.sh FOLDER (absolute)" >&2 && exit 2; }
folder=$1
program=$folder/bin/apptainer
[[ ! -x $program ]] || exec "$program" --version

as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
install() { "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }

if ! command -v apptainer >/dev/null; then
  "${as_root[@]}" apt-get update -qq
  [[ -z $(apt-cache --names-only search '^apptainer$') ]] || install apptainer
fi
if command -v apptainer >/dev/null; then
  mkdir -p "$folder/bin"
  ln -s "$(command -v apptainer)" "$program"
  exec "$program" --version
fi

# squashfs-tools and uidmap: what the package depends on. fakeroot: users without subordinate ids build with it.
install fakeroot mmdebstrap patchelf squashfs-tools uidmap

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work" # apt downloads as a user of its own

# The same mirror and keys as the system's, another suite, and lists of its own.
mkdir -p "$work/sources" "$work/lists/partial" "$work/cache/archives/partial" "$work/debs"
# The format is apt's own.
# shellcheck disable=SC2016
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | sort -u | sed -n 1p)
[[ -n $mirror ]] || { echo "no Debian mirror is among apt's sources" >&2 && exit 1; }
keys=/usr/share/keyrings/debian-archive-keyring.gpg
printf 'Types: deb\nURIs: %s\nSuites: sid trixie\nComponents: main\nSigned-By: %s\n' "$mirror" "$keys" \
  >"$work/sources/debian.sources"
cat >"$work/apt.conf" <<END
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "$work/sources";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
END
export APT_CONFIG=$work/apt.conf
"${as_root[@]}" env APT_CONFIG="$APT_CONFIG" apt-get update -qq
(cd "$work/debs" && apt-get download -qq apptainer/sid libc6/trixie 2>/dev/null)
unset APT_CONFIG

made=$folder.partial
rm -rf "$made"
mkdir -p "$made" "$work/libc"
dpkg-deb -x "$work"/debs/apptainer_*.deb "$work/apptainer"
dpkg-deb -x "$work"/debs/libc6_*.deb "$work/libc"
cp -a "$work/apptainer/usr/." "$made/"
cp -a "$work/apptainer/etc" "$made/etc"
libraries=$(dirname "$(find "$work/libc" -name libc.so.6)")
mkdir "$made/libc"
cp -a "$libraries"/*.so* "$made/libc/"
# It finds its settings beside its programs, of which one lies in lib/.
mkdir -p "$made/var/lib/apptainer/mnt/session"
ln -s ../etc "$made/lib/etc"
ln -s ../var "$made/lib/var"

system=$(dirname "$(ldconfig -p | sed -n 's/.*libc\.so\.6.* => //p' | head -n 1)")
loader=$(basename "$(find "$made/libc" -name 'ld-linux*' | head -n 1)")
while IFS= read -r file; do
  patchelf --set-interpreter "$folder/libc/$loader" --force-rpath --set-rpath "$folder/libc:$system" "$file"
done < <(find "$made/bin" "$made/lib" -type f \( -name apptainer -o -name starter \))
chmod -R go+rX "$made"
mv "$made" "$folder"
exec "$program" --version
