"""DTLS 1.2 of UDP listeners: sessions of peers by pre-shared key or certificate, over OpenSSL's memory buffers.

`gateway.runtime.dtls` puts it between a socket and an adapter. pyOpenSSL is loaded
where a listener needs it.

Imported by: process, runtime.
Imports: domain, port, security, store.base.
"""
