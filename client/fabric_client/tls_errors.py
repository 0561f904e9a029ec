"""What faults of TLS with the daemon mean, for who must mend them."""

import ssl

#: X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH. Source: OpenSSL, x509_vfy.h.
_OTHER_NAME = (62, 64)


def hint_of(error: ssl.SSLError) -> str:
    """Return what to do about a failed handshake, "" where asking again may help."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _OTHER_NAME:
            return "ask it by a name or address that its certificate has"
        return "FABRICD_CA_FILE must name the CA of the daemon's certificate"
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return "if it speaks no TLS, its address begins with http://"
    if "CERTIFICATE" in (error.reason or ""):
        return "FABRICD_CERTIFICATE_FILE and FABRICD_KEY_FILE must be a certificate that the daemon takes"
    return ""


def words_of(error: ssl.SSLError) -> str:
    """Return what OpenSSL says without its codes and places in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message.rstrip('.')}"
    return (error.reason or str(error)).replace("_", " ").lower()
