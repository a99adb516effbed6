#!/usr/bin/env bash
# Makes the certificates beside this file anew, for a hundred years from 2020: tests/data/tls/make.sh (needs openssl).
#
# | file | what |
# |---|---|
# | ca.crt | the authority of all but other.* |
# | server.crt, server.key | localhost, 127.0.0.1, ECDSA P-256 |
# | rsa.crt, rsa.key | the same, RSA 2048 |
# | ed25519.crt, ed25519.key | the same, Ed25519 |
# | v1.crt, v1.key | localhost without extensions: X.509 version 1 |
# | client.crt, client.key | a client |
# | expired.crt | the same, no longer valid |
# | other.crt, other.key, other-ca.crt | a client of another authority, and that |
# | p521.key | a key of a kind that is not supported |
# | locked.key | the server's key under the password "secret" |
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/ca.cnf" <<END
[ca]
default_ca = ca
[ca]
database = $work/index.txt
new_certs_dir = $work
rand_serial = yes
unique_subject = no
default_md = sha256
policy = policy
[policy]
commonName = supplied
END
touch "$work/index.txt"
p256=(-algorithm EC -pkeyopt ec_paramgen_curve:P-256)

# sign NAME END EXTENSIONS KEY [arguments of ca...]: a certificate for the key.
sign() {
    openssl req -new -key "$4" -subj "/CN=$1" -out "$work/csr"
    printf '%s\n' "$3" >"$work/ext"
    local ext=(-extfile "$work/ext")
    [ -n "$3" ] || ext=()
    openssl ca -batch -notext -config "$work/ca.cnf" -in "$work/csr" -out "$1.crt" -startdate 20200101000000Z -enddate "$2" \
        "${ext[@]}" "${@:5}" 2>/dev/null
}
authority() {
    openssl genpkey "${p256[@]}" -out "$work/$1.key"
    sign "$1" 21200101000000Z $'basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign' "$work/$1.key" \
        -selfsign -keyfile "$work/$1.key"
}
# issue NAME AUTHORITY EXTENSIONS [arguments of genpkey...]
issue() {
    openssl genpkey "${@:4}" -out "$1.key" 2>/dev/null
    sign "$1" 21200101000000Z "$3" "$1.key" -cert "$2.crt" -keyfile "$work/$2.key"
}
server='basicConstraints=CA:FALSE
subjectAltName=DNS:localhost,IP:127.0.0.1
extendedKeyUsage=serverAuth'
client='basicConstraints=CA:FALSE
extendedKeyUsage=clientAuth'
authority ca
authority other-ca
issue server ca "$server" "${p256[@]}"
issue rsa ca "$server" -algorithm RSA -pkeyopt rsa_keygen_bits:2048
issue ed25519 ca "$server" -algorithm ED25519
issue v1 ca "" "${p256[@]}"
issue client ca "$client" "${p256[@]}"
issue other other-ca "$client" "${p256[@]}"
sign expired 20200102000000Z "$client" client.key -cert ca.crt -keyfile "$work/ca.key"
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-521 -out p521.key
openssl pkcs8 -topk8 -in server.key -out locked.key -passout pass:secret
