"""Small programs of the kind that legacy applications are, and what they say beside RabbitMQ.

Imported by: interop.amqp.
Imports: tests.support.amqp.
"""
