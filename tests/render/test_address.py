"""Addresses of the public internet are recognised."""

from __future__ import annotations

import ipaddress

from trioserve.render.images.address import is_public

PUBLIC = (
    *("1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.63.0.1"),
    *("2606:4700::1111", "2a00:1450:4001::1", "64:ff9b::808:808"),
)
NOT_PUBLIC = (
    # IPv4: this network, private, shared, loopback, link-local, metadata service.
    *("0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1"),
    *("127.0.0.1", "127.255.255.254", "169.254.0.1", "169.254.169.254"),
    # Assignments, examples, 6to4 relays, benchmarks, multicast, reserved, broadcast.
    *("192.0.0.8", "192.0.0.170", "192.0.2.1", "198.51.100.1", "203.0.113.1"),
    *("192.88.99.1", "198.18.0.1", "224.0.0.1", "239.255.255.255"),
    *("240.0.0.1", "255.255.255.255"),
    # IPv6: unspecified, loopback, link-local, unique local, site-local, multicast.
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254"),
    *("fec0::1", "ff02::1", "ff0e::1"),
    # IPv4 in IPv6: mapped, translated, compatible, 6to4, Teredo, NAT64.
    *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:0:7f00:1", "::127.0.0.1"),
    *("2002:7f00:1::", "2002:808:808::", "2001:0:808:808::1"),
    *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808"),
    # Examples, ORCHID, discard-only, unassigned.
    *("2001:db8::1", "3fff::1", "2001:20::1", "100::1", "4000::1", "5f00::1"),
)


def test_hosts_of_the_internet_are_public() -> None:
    for text in PUBLIC:
        assert is_public(ipaddress.ip_address(text))


def test_everything_else_is_not() -> None:
    for text in NOT_PUBLIC:
        assert not is_public(ipaddress.ip_address(text))
