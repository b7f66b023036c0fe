"""A certificate authority, a server's certificate and nodes' keys, made without openssl and ssh-keygen."""

import datetime
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

UNUSED = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
)


def make_certificates(path):
    """`ca.crt`, and `server.crt` with `server.key` for localhost and 127.0.0.1, signed by it."""
    authority, server = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    root_usage = x509.KeyUsage(
        **dict.fromkeys((*UNUSED, "encipher_only", "decipher_only"), False),
        key_cert_sign=True,
        crl_sign=True,
    )
    root = (
        certificate("Steelyard test CA", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(root_usage, critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False
        )
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    leaf = (
        certificate("localhost", server)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA256())
    )
    (path / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (path / "server.crt").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    (path / "server.key").write_bytes(private(server, serialization.PrivateFormat.PKCS8))


def make_key(path):
    """A node's key pair, as `ssh-keygen -t ecdsa -b 384` makes it; the path of the public half."""
    key, public = ec.generate_private_key(ec.SECP384R1()), path.with_name(f"{path.name}.pub")
    path.write_bytes(private(key, serialization.PrivateFormat.OpenSSH))
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return public


def certificate(name, key):
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(called(name))
        .issuer_name(called("Steelyard test CA"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )


def called(name):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def private(key, form):
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
