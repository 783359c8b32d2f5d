#!/bin/sh
# Unpacks a kit's archive into its volume: unpack.sh ARCHIVE KIT. Called at each start of a member in a cluster.
# A kit that has every file of the archive stays as it is, with its renewed certificates. An interrupted call is repeated:
# all files are unpacked elsewhere in the volume first, and startup, with the key, is moved into the kit last.
set -eu
archive=$1 kit=$2 new=$2/.unpacking

complete() {
    tar -tzf "$archive" | (cd "$1" && while read -r name; do test -e "$name" || exit 1; done)
}

if ! complete "$kit"; then
    rm -rf "$new"
    mkdir "$new"
    tar -xzf "$archive" -C "$new" # fails if the archive is damaged
    test -d "$new/startup" || { echo "$archive: contains no kit; make it with tar -czf kit.tgz -C KIT ." >&2; exit 2; }
    sync
    rm -rf "$kit/startup"
    for path in "$new"/* "$new"/.[!.]*; do
        test "$path" = "$new/startup" || ! test -e "$path" && continue
        rm -rf "$kit/${path##*/}"
        mv "$path" "$kit"
    done
    mv "$new/startup" "$kit"
    rm -rf "$new"
fi
chmod 600 "$kit"/startup/*.key # a volume's settings may open files to its group
