"""Prints bearer tokens: python3 tokens.py SECRET COUNT [PREFIX]

One HS256 token a line, for the members PREFIX1 to PREFIX followed by COUNT, good for a day.
"""

import base64
import hashlib
import hmac
import json
import sys
import time


def encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def token(secret: str, member: str, now: int) -> str:
    header = encode(b'{"alg":"HS256","typ":"JWT"}')
    claims = encode(json.dumps({"sub": member, "iat": now, "exp": now + 86400}).encode())
    signed = f"{header}.{claims}"
    return f"{signed}.{encode(hmac.new(secret.encode(), signed.encode(), hashlib.sha256).digest())}"


if __name__ == "__main__":
    secret, count = sys.argv[1], int(sys.argv[2])
    prefix = sys.argv[3] if len(sys.argv) > 3 else ""
    now = int(time.time())
    for number in range(1, count + 1):
        print(token(secret, f"{prefix}{number}", now))
